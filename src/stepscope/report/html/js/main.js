// The page, from top to bottom.

// Two sections beside each other, or the one of them that is there.
function pair(...boxes) {
  const there = boxes.filter(Boolean);
  return there.length > 1 ? el("div", { class: "pair" }, there) : there[0] ?? null;
}

// Beside each other on a very wide window only.
function widePair(...boxes) {
  const there = boxes.filter(Boolean);
  return there.length > 1 ? el("div", { class: "wide-pair" }, there) : there[0] ?? null;
}

const SHORT = {
  findings: "Fix first", "what-if": "What if", "run-steps": "Run", traffic: "Between ranks", "kernel-pictures": "Roofline", budget: "Step", code: "Code", waterfall: "FLOPs", steps: "Step times", heatmap: "Ranks × steps", timeline: "Timeline",
  calibration: "Calibration", strategy: "Strategy", idle: "Idle", "critical-path": "Critical path", trust: "Trust",
};

// Sections that are drawn before the browser gets to show what there is.
const AT_ONCE_MS = 40;

async function main() {
  const root = byId("report");
  const data = await unpack(byId("data").textContent);
  const { report, grid } = data;
  byId("top").append(...header(report));
  const list = contents(SHORT);
  root.before(list.nav);
  let begin = performance.now(), drawn = 0;
  for (const make of sections(data, report, grid, data.pictures)) {
    const part = make();
    if (!part) continue;
    root.append(part);
    list.add(root);
    for (; drawn < redraws.length; drawn++) redraws[drawn]();
    if (performance.now() - begin < AT_ONCE_MS) continue;
    await new Promise((go) => setTimeout(go));
    begin = performance.now();
  }
  for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (root.querySelectorAll("a.card"))) if (!document.getElementById(link.hash.slice(1))) link.removeAttribute("href");
  let width = root.clientWidth;
  new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    redraws.forEach((draw) => draw());
  }).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((draw) => draw()));
  if (scrollY === 0) state.goTo();
  root.setAttribute("aria-busy", "false");
  document.documentElement.dataset.readyMs = performance.now().toFixed(0);
}

// What makes each section, from top to bottom; null is one that this run has nothing for.
/** @type {(data: PageData, report: any, grid: Grid | null, shown: any) => (() => HTMLElement | null)[]} */
const sections = (data, report, grid, shown) => [
  () => clockBanner(report), () => cards(report), () => findings(report, grid), () => switches(report, shown.switches), () => budget(report),
  () => {
    const flops = waterfall(report);
    return widePair(pictureSection("run-steps", "Step time of the whole run", [shown.run_steps]), pair(flops, grid && stepTimes(grid, report.steadiness, { alone: !flops })));
  },
  () => code(report, data.trees), () => grid && grid.ranks.length > 1 ? heatmap(grid, report.ranks) : null, () => timeline(data), () => ranks(report), () => collectives(report),
  () => pictureSection("traffic", "Between ranks", [shown.waiting, shown.sending, shown.bandwidth]),
  () => calibration(data.calibration), () => memory(report, shown), () => devices(report), () => strategyView(report, shown), () => kernels(report),
  () => pictureSection("kernel-pictures", "Kernels in pictures", [shown.roofline, shown.durations, shown.queue]), () => operators(report),
  () => pair(idle(report), criticalPath(report)), () => checks(report), () => trust(data),
];

main().catch((error) => {
  byId("report").append(el("p", { role: "alert", class: "warning" }, `This page could not be drawn: ${error.message}`));
  throw error;
});
