// Time against size of the machine's collectives as calibrated, and what this run's collectives took: the alpha-beta plot.

const CURVE_COLOURS = ["compute", "transfer", "copy", "input", "optimizer", "host", "wait", "unknown"];

function calibration(found) {
  if (!found || !found.curves.length) return null;
  return panel("calibration", "Collectives against this machine's calibration",
    el("p", { class: "quiet" }, "Dots were measured, lines are fitted (90 % of measurements lie in the band), diamonds are this run without waiting."),
    el("div", { class: "halves" }, el("div", {}, calibrationChart(found), curveLegend(found)), curveTable(found)));
}

const curveName = (c) => `${words(c.op)}, ${c.world_size} ranks`;
const colourOfCurve = (found, op, world) => {
  const k = found.curves.findIndex((c) => c.op === op && c.world_size === world);
  return k < 0 ? "quiet" : CURVE_COLOURS[k % CURVE_COLOURS.length];
};

function calibrationChart(found) {
  const points = [...found.curves.flatMap((c) => c.points), ...found.run.map((p) => [p.bytes, p.us])].filter(([b, us]) => b > 0 && us > 0);
  const [width, height, left, right, top, base] = [560, 300, 76, 550, 14, 268];
  const range = (values) => [Math.log10(Math.min(...values)), Math.max(Math.log10(Math.max(...values)), Math.log10(Math.min(...values)) + 1)];
  const [x0, x1] = range(points.map(([b]) => b)), [y0, y1] = range(points.map(([, us]) => us)).map((v, i) => (i ? Math.ceil(v) : Math.floor(v)));
  const x = (bytes) => left + ((right - left) * (Math.log10(bytes) - x0)) / (x1 - x0);
  const y = (us) => Math.min(base, base - ((base - top) * (Math.log10(Math.max(us, 1e-6)) - y0)) / (y1 - y0));
  const chart = picture(width, height, "Time against size of collectives, both logarithmic; the table below holds the fits");
  for (let p = y0; p <= y1; p++) {
    chart.append(svg("line", { x1: left, x2: right, y1: y(10 ** p), y2: y(10 ** p), class: "grid" }),
      svg("text", { x: left - 8, y: y(10 ** p) + 4, class: "axis end" }, timeText(10 ** p / 1000)));
  }
  for (let p = Math.ceil(x0); p <= x1; p++) {
    if (x1 - x0 > 5 && p % 2) continue;
    chart.append(svg("line", { x1: x(10 ** p), x2: x(10 ** p), y1: base, y2: base + 4, class: "grid" }),
      svg("text", { x: x(10 ** p), y: base + 18, class: `axis ${x(10 ** p) > width - 40 ? "end" : "middle"}` }, bytesText(10 ** p)));
  }
  const path = (list) => list.map(([b, us]) => `${x(b).toFixed(1)},${y(us).toFixed(1)}`).join(" ");
  found.curves.forEach((c) => {
    const colour = `var(--${colourOfCurve(found, c.op, c.world_size)})`;
    const band = [...c.line.map(([b, , , high]) => [b, high]), ...c.line.map(([b, , low]) => [b, low]).reverse()];
    chart.append(svg("polygon", { points: path(band), fill: colour, opacity: 0.15 }),
      svg("polyline", { points: path(c.line), fill: "none", stroke: colour, "stroke-width": 1.6 }),
      c.points.map(([b, us]) => svg("circle", { cx: x(b), cy: y(us), r: 2.2, fill: colour })).reduce((g, dot) => (g.append(dot), g), svg("g", {})));
  });
  for (const p of found.run) {
    const [cx, cy] = [x(p.bytes), y(p.us)];
    chart.append(svg("path", { d: `M${cx} ${cy - 6}L${cx + 6} ${cy}L${cx} ${cy + 6}L${cx - 6} ${cy}z`, class: "seen", fill: `var(--${colourOfCurve(found, p.op, p.world_size)})`,
      on: { mousemove: (e) => tip.show(e, `${curveName(p)}, ${bytesText(p.bytes)}`, [`in this run ${timeText(p.us / 1000)}`]), mouseleave: tip.hide } }));
  }
  return chart;
}

function curveLegend(found) {
  return legend(found.curves.map((c) => [colourOfCurve(found, c.op, c.world_size),
    `${curveName(c)}: α ${timeText(c.alpha_us / 1000)}, ${known(c.algbw_gb_per_s) ? `${digits(c.algbw_gb_per_s)} GB/s` : "bandwidth unknown"}`]));
}

// The line's time at a size, by interpolation of its logarithms; null outside the sizes that were measured.
function curveTime(c, bytes) {
  const k = c.line.findIndex(([b]) => b >= bytes);
  if (k < 0 || bytes < c.line[0][0]) return null;
  const [b1, t1] = c.line[k], [b0, t0] = c.line[Math.max(0, k - 1)];
  const share = b1 > b0 ? (Math.log(bytes) - Math.log(b0)) / (Math.log(b1) - Math.log(b0)) : 0;
  return Math.exp(Math.log(t0) + share * (Math.log(t1) - Math.log(t0)));
}

function curveTable(found) {
  const fits = plainTable(["curve", "latency", "GB/s", "R²", "error on sizes left out"], found.curves.map((c) => [
    curveName(c), timeText(c.alpha_us / 1000), known(c.algbw_gb_per_s) ? digits(c.algbw_gb_per_s) : NONE, c.r2.toFixed(3),
    known(c.left_out_error) ? pctText(100 * c.left_out_error) : NONE,
  ]));
  const rows = found.run.map((p) => {
    const curve = found.curves.find((c) => c.op === p.op && c.world_size === p.world_size);
    const usual = curve ? curveTime(curve, p.bytes) : null;
    return [`${curveName(p)}, ${bytesText(p.bytes)}`, timeText(p.us / 1000), known(usual) ? timeText(usual / 1000) : NONE, known(usual) ? `${(p.us / usual).toFixed(2)}×` : NONE];
  });
  return el("div", {}, fits, rows.length ? plainTable(["in this run", "transfer", "calibrated", "ratio"], rows) : null);
}
