// The page, from top to bottom.

// Two sections beside each other, or the one of them that is there.
function pair(...boxes) {
  const there = boxes.filter(Boolean);
  return there.length > 1 ? el("div", { class: "pair" }, there) : there[0] ?? null;
}

async function main() {
  const root = document.getElementById("report");
  const data = await unpack(document.getElementById("data").textContent);
  const { report, grid, slices } = data;
  document.getElementById("top").append(...header(report));
  const parts = [
    cards(report), findings(report), budget(report), pair(waterfall(report), grid && stepTimes(grid, report.steadiness)),
    grid && heatmap(grid), slices && timeline(slices), ranks(report), collectives(report), kernels(report), operators(report),
    pair(idle(report), criticalPath(report)), memory(report), strategyView(report), checks(report), trust(data),
  ];
  root.append(...parts.filter(Boolean));
  redraws.forEach((draw) => draw());
  let width = root.clientWidth;
  new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    redraws.forEach((draw) => draw());
  }).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((draw) => draw()));
  root.setAttribute("aria-busy", "false");
  document.documentElement.dataset.readyMs = performance.now().toFixed(0);
}

main().catch((error) => {
  document.getElementById("report").append(el("p", { role: "alert", class: "warning" }, `This page could not be drawn: ${error.message}`));
  throw error;
});
