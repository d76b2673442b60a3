// Pictures of a comparison: both budgets under each other, changes with their intervals, and the step times.

const SIDES = ["a", "b"];
const SIDE_COLOUR = { a: "input", b: "compute" };
const signed = (text, value) => (value > 0 ? `+${text}` : text);
const signedTime = (ms) => (known(ms) ? signed(timeText(ms), ms) : NONE);
const signedPct = (pct, places = 1) => (known(pct) ? signed(pctText(pct, places), pct) : NONE);
const TONE = { slower: "high", appeared: "high", came: "high", grew: "high", faster: "low", vanished: "low", went: "low", "mostly gone": "low" };

// Green for less, red for more, where the interval leaves out zero; grey where it does not.
const bySign = ({ low, high }) => (known(low) && low > 0 ? "high" : known(high) && high < 0 ? "low" : "note");

// rows: { name, change, low, high, tone, lines }; `show` writes a number
const intervalChart = (rows, show, label) => sized((width) => drawnIntervals(rows, show, label, width));
function drawnIntervals(rows, show, label, width) {
  const line = 24, from = Math.min(300, width * 0.34), to = width - 90;
  const reach = Math.max(...rows.flatMap((r) => [r.change, r.low ?? 0, r.high ?? 0].map(Math.abs)), 1e-9);
  const x = (value) => (from + to) / 2 + ((to - from) / 2) * (value / reach);
  const chart = picture(width, rows.length * line + 26, label);
  const step = roundStep(reach / 2), round = step > reach ? reach / 2 : step;
  for (const at of [-round, 0, round]) chart.append(svg("line", { x1: x(at), x2: x(at), y1: 0, y2: rows.length * line, class: "grid" }));
  rows.forEach((row, i) => {
    const y = i * line + line / 2;
    const tone = row.tone ?? bySign(row);
    chart.append(svg("g", { on: { mousemove: (e) => tip.show(e, row.name, row.lines), mouseleave: tip.hide } },
      svg("rect", { x: 0, y: y - line / 2, width, height: line, class: "hit" }),
      svg("text", { x: from - 12, y: y + 4, class: "axis end" }, shortened(row.name, Math.floor(from / 7.4))),
      svg("rect", { x: Math.min(x(0), x(row.change)), y: y - 6, width: Math.max(1, Math.abs(x(row.change) - x(0))), height: 12, rx: 2,
        fill: `var(--${tone})`, opacity: row.tone ? 0.8 : 0.4 }),
      known(row.low) && svg("line", { x1: x(row.low), x2: x(row.high), y1: y, y2: y, stroke: "var(--text)", "stroke-width": 1.5 }),
      svg("text", { x: to + 12, y: y + 4, class: "axis" }, show(row.change))));
  });
  for (const at of [-round, 0, round]) {
    chart.append(svg("text", { x: x(at), y: rows.length * line + 18, class: "axis middle" }, at ? show(at) : "0"));
  }
  return chart;
}

// The step of both sides as two bars on one scale, parts in the same order and colours.
function stackedBudgets(report) {
  const rows = report.budget.filter((r) => r.a > 0 || r.b > 0);
  const colours = new Map(rows.map((r) => [partColour(r.part), r.part]));
  const names = [...colours].map(([name, part]) => [name, BUDGET_COLOUR[part] ? words(part) : GROUP_TEXT[name] ?? words(part)]);
  return el("div", {}, sized((width) => drawnBudgets(rows, width)), legend(names));
}
function drawnBudgets(rows, width) {
  const totals = SIDES.map((side) => rows.reduce((sum, r) => sum + r[side], 0));
  const most = Math.max(...totals) || 1;
  const [from, to, line] = [24, width - 76, 44];
  const unit = timeUnit(most), ticks = niceTicks(most, unit).filter((ms) => ms <= most * 1.02);
  const x = (ms) => from + ((to - from) * ms) / most;
  const chart = picture(width, 2 * line + 26, `Budgets of both sides: A ${timeText(totals[0])}, B ${timeText(totals[1])}; the table below holds their parts`);
  for (const ms of ticks) {
    chart.append(svg("line", { x1: x(ms), x2: x(ms), y1: 0, y2: 2 * line, class: "grid" }),
      svg("text", { x: x(ms), y: 2 * line + 18, class: `axis ${ms ? "middle" : ""}` }, timeTick(ms, unit)));
  }
  SIDES.forEach((side, k) => {
    const y = k * line;
    let at = 0;
    chart.append(svg("text", { x: 0, y: y + line / 2 + 4, class: "axis strong" }, side.toUpperCase()));
    for (const row of rows) {
      const [left, wide] = [x(at), x(at + row[side]) - x(at)];
      at += row[side];
      if (!row[side]) continue;
      const lines = [`${timeText(row[side])} of ${timeText(totals[k])}, ${pctText((100 * row[side]) / totals[k])}`, `change ${signedTime(row.change)}`];
      chart.append(svg("g", { on: { mousemove: (e) => tip.show(e, `${side.toUpperCase()}: ${words(row.part)}`, lines), mouseleave: tip.hide } },
        svg("rect", { x: left, y: y + 6, width: Math.max(0.7, wide - 0.7), height: line - 12, fill: `var(--${partColour(row.part)})` })));
    }
    chart.append(svg("text", { x: x(at) + 8, y: y + line / 2 + 4, class: "axis strong" }, timeText(totals[k])));
  });
  return chart;
}
const BUDGET_COLOUR = { forward: "forward", backward: "backward", optimizer: "optimizer", other_compute: "other" };
const partColour = (part) => BUDGET_COLOUR[part] ?? GROUP_OF_PART[part] ?? "unknown";

const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Step times of all runs, one dot per step; a line at what the sides are compared by.
function stepDots(report) {
  const sides = SIDES.map((side) => report[side].runs.map((run) => run.step_times_ms));
  if (!sides.flat(2).length) return null;
  const source = { "step logs": "unprofiled steps", "device periods": "profiled steps" }[report.a.runs[0].source] ?? "steps";
  return el("div", {}, sized((width) => drawnSteps(report, sides, width)),
    el("p", { class: "quiet" }, `Dots: ${source} in order, warm-up left out. Dashed: what is compared, the mean of the middle half.`),
    legend(SIDES.map((side) => [SIDE_COLOUR[side], `${side.toUpperCase()}: ${report[side].name}`])));
}
function drawnSteps(report, sides, width) {
  const all = sides.flat(2);
  const [height, from, base] = [222, 66, 210];
  const sorted = [...all].sort((p, q) => p - q);
  const low = sorted[0], high = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * 0.995))] || 1;
  const pad = (high - low || high * 0.1) * 0.08;
  const y = (ms) => Math.max(6, base - ((base - 12) * (ms - low + pad)) / (high - low + 2 * pad));
  const most = Math.max(...sides.flat().map((run) => run.length));
  const x = (i) => from + ((width - from - 8) * (i + 0.5)) / most;
  const chart = picture(width, height, `Step times of A around ${timeText(report.step_ms.a)} and of B around ${timeText(report.step_ms.b)}`);
  const unit = timeUnit(high);
  for (const ms of ticksBetween(low - pad, high + pad, unit)) {
    chart.append(svg("line", { x1: from, x2: width, y1: y(ms), y2: y(ms), class: "grid" }),
      svg("text", { x: from - 8, y: y(ms) + 4, class: "axis end" }, timeTick(ms, unit)));
  }
  SIDES.forEach((side, k) => {
    const colour = `var(--${SIDE_COLOUR[side]})`;
    let path = "";
    for (const run of sides[k]) run.forEach((ms, i) => (path += `M${x(i).toFixed(1)} ${y(ms).toFixed(1)}h0`));
    chart.append(svg("path", { d: path, stroke: colour, "stroke-width": most > 400 ? 2.5 : 5, "stroke-linecap": "round", opacity: 0.75 }));
    const at = y(report.step_ms[side]);
    if (sides[k].flat().length) chart.append(svg("line", { x1: from, x2: width, y1: at, y2: at, stroke: colour, "stroke-width": 1.5, "stroke-dasharray": "6 3" }));
  });
  return chart;
}
