// The waterfall from peak to achieved, and the times of the steps: drawn as SVG.

function waterfall(report) {
  const rows = report.waterfall;
  if (!rows.length) return null;
  /** @type {[string, number, number, string, any][]} */
  const bars = [["peak", 100, 0, "bar-total", null]];
  let left = 100;
  for (const row of rows) {
    const last = row.loss === "achieved";
    if (!last) left -= row.pct_of_peak;
    if (!last && row.pct_of_peak < 0.05) continue;
    bars.push([words(row.loss), row.pct_of_peak, last ? 0 : left, last ? "bar-total" : lossClass(row.loss), row]);
  }
  const [width, line, from, to] = [560, Math.max(22, Math.min(30, 210 / bars.length)), window.innerWidth > 480 ? 150 : 184, 470];
  const x = (pct) => from + ((to - from) * pct) / 100;
  const chart = picture(width, bars.length * line + 4, "Waterfall from peak to achieved FLOP rate; the table below holds its numbers");
  bars.forEach(([name, pct, start, kind, row], i) => {
    const y = i * line;
    const half = x(row?.plus_minus ?? 0) - from, end = row?.loss === "achieved" ? x(pct) : x(start);
    const right = Math.max(x(start) + Math.max(1.5, x(pct) - from), Math.min(end + half, to), from);
    const label = pct && kind !== "bar-total" ? `−${pct.toFixed(1)} %` : `${pct.toFixed(1)} %`;
    chart.append(svg("g", { on: { mousemove: (e) => row && tip.show(e, name, waterfallLines(row)), mouseleave: tip.hide } },
      svg("rect", { x: 0, y, width, height: line, class: "hit" }),
      svg("text", { x: from - 10, y: y + line / 2 + 4, class: "axis end" }, name),
      svg("rect", { x: x(start), y: y + 4, width: Math.max(1.5, x(pct) - from), height: line - 8, rx: 2, class: kind }),
      half < 1 ? null : errorBar(Math.max(from, end - half), Math.min(to, end + half), y + line / 2),
      svg("text", { x: right + 6, y: y + line / 2 + 4, class: "axis" }, label)));
  });
  return panel("waterfall", "Where the FLOPs go: from peak to achieved", chart,
    el("p", { class: "quiet" }, report.efficiency.flops_source ? `FLOPs from ${report.efficiency.flops_source}; attention counted in full.` : ""),
    foldedLater("as a table", () => plainTable(["loss", "of peak", "per step", "±"],
      rows.map((r) => [words(r.loss), pctText(r.pct_of_peak), timeText(r.ms_per_step), pctText(r.plus_minus)]))));
}

// How far off a loss may be, at the end it reaches down to: the other end is where the one before stopped.
const errorBar = (x0, x1, y) => svg("path", { d: `M${x0} ${y - 4}v8M${x0} ${y}H${x1}M${x1} ${y - 4}v8`, class: "error" });

const lossClass = (loss) => (["non_matmul_kernels", "matmul_below_peak", "precision", "recomputation"].includes(loss) ? "bar-quiet" : "bar-loss");

function waterfallLines(row) {
  const error = known(row.plus_minus) ? ` ± ${row.plus_minus.toFixed(2)}` : "";
  return [`${pctText(row.pct_of_peak, 2)} of peak${error}`, `${timeText(row.ms_per_step)} per step`];
}

// Mean over ranks of each group at each step.
/** @param {Grid} grid */
function stepMeans(grid) {
  return Object.fromEntries(GROUPS.map((group) =>
    [group, grid.used.includes(group) ? meanOverRanks(grid.groups[group], grid.steps.length) : new Float64Array(grid.steps.length)]));
}

function meanOverRanks(values, steps) {
  const mean = new Float64Array(steps), count = new Float64Array(steps);
  for (let i = 0, s = 0; i < values.length; i++, s = s + 1 < steps ? s + 1 : 0) {
    const value = values[i];
    if (value === value) { mean[s] += value; count[s]++; }
  }
  for (let s = 0; s < steps; s++) mean[s] = count[s] ? mean[s] / count[s] : 0;
  return mean;
}

// Beside another section the picture has half the page: its letters are as large as those around it in either case.
function stepTimes(grid, steadiness, { alone = false } = {}) {
  if (grid.steps.length < 2) return null;
  const means = stepMeans(grid);
  const num = grid.steps.length;
  const totals = grid.steps.map((_, s) => GROUPS.reduce((sum, g) => sum + means[g][s], 0));
  const longest = Math.max(...totals) || 1;
  const unit = timeUnit(longest), ticks = niceTicks(longest, unit), most = ticks.at(-1) ?? longest;
  const [width, height, from, base] = [alone && window.innerWidth > 700 ? 1180 : 560, 230, 66, 204];
  const wide = (width - from - 4) / num;
  const y = (ms) => base - ((base - 12) * ms) / most;
  const chart = picture(width, height, `Times of ${num} steps, median ${timeText(median(totals))}`);
  for (const ms of ticks) {
    chart.append(svg("line", { x1: from, x2: width, y1: y(ms), y2: y(ms), class: "grid" }),
      svg("text", { x: from - 8, y: y(ms) + 4, class: "axis end" }, timeTick(ms, unit)));
  }
  const below = new Float64Array(num);
  const bar = Math.min(wide > 4 ? wide - 1 : wide, 60);
  const left = (s) => from + s * wide + (wide - bar) / 2;
  for (const group of GROUPS) {
    let path = "";
    for (let s = 0; s < num; s++) {
      const ms = means[group][s];
      const [low, high] = [y(below[s]), y(below[s] + ms)].map((v) => v.toFixed(2));
      if (ms > 0) path += `M${left(s).toFixed(2)} ${low}h${bar.toFixed(2)}V${high}h-${bar.toFixed(2)}z`;
      below[s] += ms;
    }
    if (path) chart.append(svg("path", { d: path, fill: `var(--${group})` }));
  }
  const marks = Math.max(1, Math.ceil(num / 8));
  for (let s = 0; s < num; s += marks) {
    chart.append(svg("text", { x: Math.min(left(s) + bar / 2, width - 14), y: base + 18, class: "axis middle" }, grid.steps[s]));
  }
  chart.addEventListener("mousemove", (e) => {
    const box = chart.getBoundingClientRect();
    const s = Math.floor((((e.clientX - box.left) / box.width) * width - from) / wide);
    if (s < 0 || s >= num) {
      tip.hide();
      return;
    }
    const parts = GROUPS.filter((g) => means[g][s] > 0);
    tip.show(e, `step ${grid.steps[s]}: ${timeText(totals[s])}`, parts.map((g) => `${GROUP_TEXT[g]} ${timeText(means[g][s])}`));
  });
  chart.addEventListener("mouseleave", tip.hide);
  const used = GROUPS.filter((g) => means[g].some((v) => v > 0));
  return panel("steps", grid.ranks.length > 1 ? "Step time, mean over ranks" : "Step time", chart, legend(used.map((g) => [g, GROUP_TEXT[g]])),
    steadiness ? el("p", { class: "quiet" }, steadyText(steadiness)) : null,
    foldedLater("as a table", () => plainTable(["step", "total", ...used.map((g) => GROUP_TEXT[g])],
      grid.steps.slice(0, 200).map((n, s) => [n, timeText(totals[s]), ...used.map((g) => timeText(means[g][s]))]))));
}

function steadyText(s) {
  const drift = s.drift && s.drift.significant ? `, drifts by ${pctText(s.drift.change_pct)}` : "";
  const spread = `median ${timeText(s.median_ms)}, 99 % below ${timeText(s.p99_ms)}, spread ${pctText(s.robust_spread_pct)}`;
  return `${words(s.source)}: ${spread}, ${s.num_spikes} spikes${drift}`;
}
