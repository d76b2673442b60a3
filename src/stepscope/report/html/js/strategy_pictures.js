// One sentence and one picture per parallel strategy; the numbers themselves are in the tables below them.

const MAX_BARS = 24;

// rows: [label, [[colour, amount], ...], remark]; amounts in one unit, shown by `show`.
function stackedBars(label, rows, parts, show = timeText) {
  const sum = ([, values]) => values.reduce((a, b) => a + b, 0);
  const all = rows.map(([name, values, remark]) => [name, values.map((v) => v ?? 0), remark]);
  const shortest = all.map(sum).sort((a, b) => b - a)[MAX_BARS - 1] ?? 0;
  const list = all.filter((row) => sum(row) >= shortest).slice(0, MAX_BARS);
  const most = Math.max(...list.map(sum), 1e-9);
  const [width, line, from, to] = [1120, 24, 150, 760];
  const chart = picture(width, list.length * line + 2, `${label}; the table below holds its numbers`);
  list.forEach(([name, values, remark], i) => {
    let at = from;
    const lines = parts.map(([, text], k) => `${text} ${show(values[k])}`).filter((_, k) => values[k] > 0);
    const row = svg("g", { on: { mousemove: (e) => tip.show(e, name, lines), mouseleave: tip.hide } },
      svg("rect", { x: 0, y: i * line, width, height: line, class: "hit" }), svg("text", { x: from - 10, y: i * line + 16, class: "axis end" }, name));
    values.forEach((value, k) => {
      const wide = ((to - from) * value) / most;
      if (wide > 0.2) row.append(svg("rect", { x: at, y: i * line + 4, width: wide, height: line - 8, fill: `var(--${parts[k][0]})` }));
      at += wide;
    });
    row.append(svg("text", { x: at + 8, y: i * line + 16, class: "axis" }, remark));
    chart.append(row);
  });
  const left = rows.length > list.length ? el("p", { class: "quiet" }, `the ${list.length} longest of ${rows.length}`) : null;
  return el("div", {}, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, chart), legend(parts), left);
}

function loadText({ imbalance, fullest_rank }) {
  if (!known(imbalance)) return "The load of the ranks could not be compared.";
  return known(fullest_rank) ? `The fullest rank (${fullest_rank}) gets ${imbalance.toFixed(2)} times the mean load.` : "All ranks get the same load.";
}

const rest = (whole, part) => Math.max(0, (whole ?? 0) - (part ?? 0));

const STRATEGY_PICTURES = {
  buckets: ({ buckets }) => [
    `Gradients travel in ${buckets.length} bucket${buckets.length === 1 ? "" : "s"} per backward pass, in the order in which they became ready.`,
    stackedBars("Time of each bucket", buckets.map((b) => [
      `bucket ${b.order} · ${bytesText(b.size_bytes)}`, [b.wait_ms, rest(b.time_ms, b.wait_ms)],
      `ready ${timeText(b.ready_ms)} into backward, ${timeText(b.exposed_ms)} exposed`,
    ]), [["wait", "waiting for other ranks"], ["transfer", "transfer"]]),
  ],
  pipeline: (view) => [
    `${view.stages} stages, ${view.microbatches ?? "unknown"} micro-batches${view.schedule ? `, ${view.schedule}` : ""}: the stages wait for ` +
    `${pctText(view.bubble_pct)} of the step. With equal stages that never wait for a transfer, (p − 1) / (m + p − 1) gives ${pctText(view.textbook_pct)}` +
    `${known(view.schedule_pct) ? `, and this schedule with the stages' own times ${pctText(view.schedule_pct)}` : ""}.`,
    stackedBars("The step of each stage", view.ranks.map((r) => [
      `stage ${r.stage} · rank ${r.rank}`, [r.forward_ms, r.backward_ms, r.other_ms, r.transfer_ms, r.wait_ms, r.gaps_ms, r.idle_ms],
      `bubble ${pctText(r.bubble_pct)}`,
    ]), [["forward", "forward"], ["backward", "backward"], ["other", "other compute"], ["transfer", "send and receive"], ["wait", "bubble"],
      ["host", "gaps"], ["unknown", "idle"]]),
  ],
  sharding: (view) => [
    `Parameters sharded as ${view.stage}: each rank gathers them ${countText(view.ranks[0]?.gathers_of_parameters)} times per step and ` +
    `moves ${countText(view.ranks[0]?.traffic_of_parameters)} times their size in all.`,
    stackedBars("Gathers and scatters of each rank", view.ranks.flatMap((r) => [
      [`rank ${r.rank} · gathers`, [rest(r.gather_ms, r.gather_exposed_ms), r.gather_exposed_ms],
        `${bytesText(r.gathered_bytes)}, ${pctText(r.early_pct, 0)} asked for early, ${timeText(r.gather_wait_ms)} waiting`],
      [`rank ${r.rank} · scatters`, [rest(r.scatter_ms, r.scatter_exposed_ms), r.scatter_exposed_ms],
        `${bytesText(r.scattered_bytes)}, ${timeText(r.scatter_wait_ms)} waiting`],
    ]), [["other", "hidden behind compute"], ["transfer", "exposed"]]),
  ],
  tensor_parallel: (view) => [
    "Each layer computes, then waits for its part of the others' results.",
    stackedBars("Compute and communication of each layer", view.layers.map((r) => [
      `${words(r.part)} ${r.position}`, [r.compute_ms, r.exposed_ms], `${pctText(r.share_pct, 0)} communication, ${bytesText(r.size_bytes)}`,
    ]), [["compute", "compute"], ["transfer", "exposed communication"]]),
  ],
  experts: (view, shown) => [loadText(view), shown.experts ? drawn(shown.experts) : null],
};

function strategyPicture(name, view, shown) {
  const [sentence, chart] = STRATEGY_PICTURES[name](view, shown);
  return el("div", { class: "strategy-picture" }, el("h3", {}, name === "experts" && view.kind === "embedding" ? "sharded embeddings" : words(name)), el("p", {}, sentence), chart);
}
