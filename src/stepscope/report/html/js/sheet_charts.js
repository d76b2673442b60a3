// Charts of a sheet, drawn from what they hold: values with intervals, lines, stacked bars.

const SHEET_COLOURS = ["compute", "transfer", "copy", "input", "wait", "optimizer", "host", "unknown", "other"];
const PART_COLOURS = {
  data_loading: "input", forward_pass: "forward", backward_pass: "backward", optimizer_step: "optimizer", optimizer: "optimizer", gradient_sync: "wait",
  parameters: "forward", gradients: "backward", activations: "transfer", temporary: "host", other: "unknown",
};

// A value in its unit, as the report writes it.
function unitText(value, unit) {
  if (!known(value)) return NONE;
  if (unit === "ms") return timeText(value);
  if (unit === "bytes") return bytesText(value);
  if (unit === "pct") return pctText(value);
  if (unit === "x") return `${digits(value)}×`;
  if (unit === "gb_per_s") return `${digits(value)} GB/s`;
  if (unit === "flops") return flopsText(value);
  if (unit === "count") return countText(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: 4 }) : String(value);
}

function flopsText(flops) {
  const power = Math.min(7, Math.max(0, Math.floor(Math.log10(Math.max(Math.abs(flops), 1)) / 3)));
  return `${digits(flops / 1000 ** power)} ${["", "k", "M", "G", "T", "P", "E", "Z"][power]}FLOP`;
}

// Round numbers of an axis from 0, with how they are written.
function unitTicks(most, unit) {
  const scale = unitScale(most, unit);
  const write = unit === "ms" ? timeTick : unit === "bytes" ? byteTick : (value) => (value ? unitText(value, unit) : "0");
  return niceTicks(most || 1, scale).filter((v) => v <= most * 1.001).map((value) => ({ value, text: write(value, scale) }));
}

const unitScale = (most, unit) => (unit === "ms" ? timeUnit(most) : unit === "bytes" ? byteUnit(most) : 1);

// Numbers of steps and runs are whole.
function wholeTicks(low, high, most) {
  const step = Math.max(1, roundStep((high - low) / most)), first = Math.ceil(low / step);
  return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, i) => (first + i) * step).filter(Number.isInteger);
}

const drawnChart = (chart) => ({ intervals: intervalRows, lines: lineChart, stacks: stackRows })[chart.kind](chart);

// Values with their intervals from zero; samples as dots, the few that are far out at the edge.
function intervalRows(chart) {
  const rows = chart.rows.filter((r) => known(r.value));
  return sized((width) => {
    const line = rows.some((r) => r.samples.length) ? 34 : 24, from = Math.min(260, width * 0.34), to = width - 86;
    const inner = rows.flatMap((r) => { const all = r.samples.flat().sort((p, q) => p - q); return [r.high ?? r.value, r.value, all[Math.floor(0.98 * (all.length - 1))] ?? 0]; });
    const most = Math.max(...inner, 1e-12) * 1.02;
    const x = (value) => from + (to - from) * Math.min(1, value / most);
    const picture_ = picture(width, rows.length * line + 24, chart.label);
    for (const { value, text } of unitTicks(most, chart.unit)) {
      picture_.append(svg("line", { x1: x(value), x2: x(value), y1: 0, y2: rows.length * line, class: "grid" }),
        svg("text", { x: x(value), y: rows.length * line + 18, class: "axis middle" }, text));
    }
    rows.forEach((row, i) => {
      const y = i * line + line / 2;
      const lines = [unitText(row.value, chart.unit), known(row.low) ? `interval ${unitText(row.low, chart.unit)} to ${unitText(row.high, chart.unit)}` : "no interval"];
      picture_.append(svg("g", { on: { mousemove: (e) => tip.show(e, row.name, lines), mouseleave: tip.hide } },
        svg("rect", { x: 0, y: i * line, width, height: line, class: "hit" }),
        svg("text", { x: from - 10, y: y + 4, class: "axis end" }, cut(row.name, Math.floor(from / 7.2))),
        ...row.samples.map((run, k) => svg("path", { d: run.map((v) => `M${x(v).toFixed(1)} ${(y - 8 + (14 * (k + 0.5)) / row.samples.length).toFixed(1)}h0`).join(""),
          stroke: `var(--${SHEET_COLOURS[k % SHEET_COLOURS.length]})`, "stroke-width": 3.4, "stroke-linecap": "round", opacity: 0.45 })),
        known(row.low) ? svg("path", { d: `M${x(row.low)} ${y - 5}v10M${x(row.low)} ${y}H${x(row.high)}M${x(row.high)} ${y - 5}v10`, class: "error" }) : null,
        svg("circle", { cx: x(row.value), cy: y, r: 4, fill: "var(--text)" }),
        svg("text", { x: to + 10, y: y + 4, class: "axis strong" }, unitText(row.value, chart.unit))));
    });
    return picture_;
  });
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);

// Lines over one axis; both axes may be logarithmic. A band is drawn where points have a low and a high.
function lineChart(chart) {
  const box = sized((width) => {
    const [height, left, right, top, base] = [300, 74, width - 14, 12, 258];
    const points = chart.lines.flatMap((l) => l.points).filter(([x, y]) => (!chart.x.log || x > 0) && (!chart.y.log || y > 0));
    const picture_ = picture(width, height, chart.label);
    if (!points.length) return picture_;
    const [x, xTicks] = lineScale(points.map(([v]) => v), chart.x, left, right, Math.max(2, Math.floor(width / 130)));
    const [y, yTicks] = lineScale(points.flatMap(([, v, , high]) => [v, high ?? v]), chart.y, base, top, 5);
    for (const { value, text } of yTicks) picture_.append(svg("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "grid" }), svg("text", { x: left - 8, y: y(value) + 4, class: "axis end" }, text));
    for (const { value, text } of xTicks) picture_.append(svg("line", { x1: x(value), x2: x(value), y1: base, y2: base + 4, class: "grid" }), svg("text", { x: x(value), y: base + 18, class: `axis ${x(value) > right - 20 ? "end" : "middle"}` }, text));
    picture_.append(svg("text", { x: (left + right) / 2, y: height - 4, class: "axis middle" }, chart.x.title));
    chart.lines.forEach((line, k) => {
      const colour = `var(--${lineColour(line, k)})`, many = line.points.length > 300;
      const path = (list) => list.map(([px, py]) => `${x(px).toFixed(1)},${y(py).toFixed(1)}`).join(" ");
      const band = line.points.filter((p) => p.length > 3);
      if (band.length > 1) picture_.append(svg("polygon", { points: path([...band.map(([px, , , high]) => [px, high]), ...band.map(([px, , low]) => [px, low]).reverse()]), fill: colour, opacity: 0.15 }));
      if (line.points.length > 1 && (line.fitted || !(many || isFitted(chart, line)))) picture_.append(svg("polyline", { points: path(line.points), fill: "none", stroke: colour, "stroke-width": 1.6 }));
      if (line.fitted) return;
      picture_.append(svg("path", { d: line.points.map(([px, py]) => `M${x(px).toFixed(1)} ${y(py).toFixed(1)}h0`).join(""), stroke: colour, "stroke-width": many ? 2.5 : 6, "stroke-linecap": "round", opacity: many ? 0.7 : 1 }));
    });
    picture_.addEventListener("mousemove", (e) => {
      const place = picture_.getBoundingClientRect(), px = e.clientX - place.left, py = e.clientY - place.top;
      const near = chart.lines.flatMap((line) => line.points.map((p) => ({ line, p, off: Math.hypot(x(p[0]) - px, y(p[1]) - py) }))).reduce((a, b) => (b.off < a.off ? b : a));
      if (near.off > 24) return tip.hide();
      return tip.show(e, near.line.name, [`${chart.x.title}: ${unitText(near.p[0], chart.x.unit)}`, `${chart.y.title}: ${unitText(near.p[1], chart.y.unit)}`]);
    });
    picture_.addEventListener("mouseleave", tip.hide);
    return picture_;
  });
  return el("div", {}, el("p", { class: "quiet axis-title" }, chart.y.title), box, legend(lineNames(chart)));
}
// Whether a line goes through these points already.
const isFitted = (chart, line) => chart.lines.some((l) => l.fitted && l.colour === line.colour);
const lineColour = (line, k) => SHEET_COLOURS[(line.colour ?? k) % SHEET_COLOURS.length];
// A fitted line shares its entry with the points it goes through.
const lineNames = (chart) => [...new Map(chart.lines.map((l, k) => [lineColour(l, k), l]).reverse())].reverse().map(([name, l]) => [name, l.name]);

// A scale from values to pixels, and its ticks; linear ones begin at 0 unless the values are numbers of steps or runs.
/** @type {(values: number[], axis: any, from: number, to: number, most: number) => [(value: number) => number, { value: number, text: string }[]]} */
function lineScale(values, axis, from, to, most) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (axis.log) {
    const [a, b] = [Math.log10(low), Math.max(Math.log10(high), Math.log10(low) + 0.3)];
    const powers = [];
    const base = axis.unit === "count" ? 2 : 10, log = (v) => Math.log(v) / Math.log(base);
    for (let p = Math.ceil(log(low) - 1e-9); p <= log(high) + 1e-9; p++) powers.push(base ** p);
    // Less than three powers of ten say little of where a point lies: twice and five times each say more.
    if (base === 10 && powers.length < 3) powers.push(...[2, 5].flatMap((k) => [...new Set([...powers, 10 ** Math.floor(Math.log10(low))])].map((p) => k * p)).filter((v) => v >= low && v <= high));
    powers.sort((p, q) => p - q);
    const step = Math.max(1, Math.ceil(powers.length / most));
    return [(v) => from + ((to - from) * (Math.log10(Math.max(v, 1e-12)) - a)) / (b - a), powers.filter((_, i) => i % step === 0).map((value) => ({ value, text: unitText(value, axis.unit) }))];
  }
  if (axis.unit !== "number") low = Math.min(0, low);
  if (high === low) high = low + 1;
  if (axis.unit !== "number") high = Math.max(high, niceTicks(high, unitScale(high, axis.unit)).at(-1) ?? high);
  const ticks = axis.unit === "number" ? wholeTicks(low, high, most).map((value) => ({ value, text: unitText(value, "number") })) : unitTicks(high, axis.unit);
  return [(v) => from + ((to - from) * (v - low)) / (high - low), ticks];
}

// Bars on one scale.
function stackRows(chart) {
  const names = [...new Set(chart.rows.flatMap((r) => r.parts.map(([name]) => name)))];
  const colourOf = (name) => PART_COLOURS[name] ?? SHEET_COLOURS[names.indexOf(name) % SHEET_COLOURS.length];
  const box = sized((width) => {
    const line = chart.rows.length > 16 ? 18 : 30, gap = line > 20 ? 4 : 2, from = Math.min(220, width * 0.3), to = width - 84;
    const totals = chart.rows.map((r) => r.parts.reduce((sum, [, v]) => sum + v, 0));
    const most = Math.max(...totals, chart.limit ?? 0, 1e-12);
    const x = (value) => from + ((to - from) * value) / most;
    const picture_ = picture(width, chart.rows.length * line + 24, chart.label);
    for (const { value, text } of unitTicks(most, chart.unit)) {
      picture_.append(svg("line", { x1: x(value), x2: x(value), y1: 0, y2: chart.rows.length * line, class: "grid" }),
        svg("text", { x: x(value), y: chart.rows.length * line + 18, class: "axis middle" }, text));
    }
    chart.rows.forEach((row, i) => {
      let at = 0;
      const y = i * line;
      picture_.append(svg("text", { x: from - 10, y: y + line / 2 + 4, class: "axis end" }, cut(row.name, Math.floor(from / 7.2))));
      for (const [name, value] of row.parts) {
        const [left, wide] = [x(at), x(at + value) - x(at)];
        at += value;
        picture_.append(svg("rect", { x: left, y: y + gap, width: Math.max(0, wide - 0.6), height: line - 2 * gap, fill: `var(--${colourOf(name)})`,
          on: { mousemove: (e) => tip.show(e, `${row.name}: ${words(name)}`, [unitText(value, chart.unit)]), mouseleave: tip.hide } }));
      }
      picture_.append(svg("text", { x: x(at) + 8, y: y + line / 2 + 4, class: "axis strong" }, unitText(totals[i], chart.unit)));
    });
    if (known(chart.limit)) picture_.append(svg("line", { x1: x(chart.limit), x2: x(chart.limit), y1: 0, y2: chart.rows.length * line, class: "limit" }));
    return picture_;
  });
  return el("div", {}, box, legend(names.map((name) => [colourOf(name), words(name)])));
}
