// What the timeline says of one kernel, and of a range of time.

/** @param {Slices} slices @param {number} i @param {Map<string, any>} kernels @param {(name: number) => void} markName */
function sliceDetail(slices, i, kernels, markName) {
  const by = slices.launches[slices.launch[i]], rank = slices.rank[i], name = slices.names[slices.name[i]];
  const facts = [
    ["operator", by.operator], ["shapes", by.shapes], ["module", by.module], ["line", by.line],
    ["stream", known(by.stream) ? String(by.stream) : null],
    ["launched", known(slices.delay[i]) ? `${timeText(slices.delay[i])} before it began` : null],
  ].map(([what, value]) => [what, value ?? "not recorded"]);
  return el("div", {}, el("h3", { class: "kernel-name" }, name),
    el("dl", { class: "facts" }, facts.flatMap(([what, value]) => [el("dt", {}, what), el("dd", {}, value)])),
    el("p", {}, el("b", {}, "All launches of this kernel "), chip("mark them", () => markName(slices.name[i]))),
    table("launches", [
      launchRow(`this step, rank ${slices.ranks[rank]}`, sameName(slices, i, (k) => slices.rank[k] === rank)),
      ...(slices.ranks.length > 1 ? [launchRow(`this step, ${slices.ranks.length} ranks`, sameName(slices, i, () => true))] : []),
      ...(kernels.has(name) ? [windowRow(kernels.get(name))] : []),
    ], [{ title: "where", key: "where" }, { title: "launches", key: "count", unit: "count" }, { title: "total", key: "total", unit: "ms" },
      { title: "mean", key: (r) => r.total / r.count, unit: "ms" }]));
}

function sameName(slices, i, wanted) {
  const out = { count: 0, total: 0 };
  for (let k = 0; k < slices.name.length; k++) {
    if (slices.name[k] !== slices.name[i] || !wanted(k)) continue;
    out.count++;
    out.total += slices.dur[k];
  }
  return out;
}

const launchRow = (where, sums) => ({ where, ...sums });
const windowRow = (k) => ({ where: "whole window, mean over ranks", count: k.count, total: k.total_ms });

// What each kind took between two moments: the time in which at least one slice of it ran, rank by rank.
/** @param {Slices} slices @param {Row[]} rows @param {number} t0 @param {number} t1 @param {() => void} zoom */
function rangeSums(slices, rows, t0, t1, zoom) {
  const [from, to] = [Math.max(t0, 0), Math.min(t1, slices.span)];
  const list = KINDS.map((kind, code) => ({ kind, ms: rows.map((row) => kindTime(row, code, from, to)) })).filter(({ ms }) => ms.some((v) => v > 0));
  const most = (ms) => ms.indexOf(Math.max(...ms));
  const mean = (ms) => ms.reduce((a, b) => a + b, 0) / ms.length;
  const single = rows.length === 1;
  return el("div", {}, el("h3", {}, `From ${timeText(from)} to ${timeText(to)}: ${timeText(to - from)}`),
    el("p", {}, chip("zoom to it", zoom), el("span", { class: "quiet" }, "Kinds overlap, so they need not add up to the range.")),
    table("sums of the range", list, [
      { title: "what", key: (r) => NAMES.kinds[r.kind] },
      { title: single ? "time" : "mean over ranks", key: (r) => mean(r.ms), unit: "ms", bar: true },
      { title: "of the range", key: (r) => (100 * mean(r.ms)) / (to - from || 1), unit: "pct" },
      ...(single ? [] : [{ title: "most", key: (r) => Math.max(...r.ms), unit: "ms", show: (r, v) => `${timeText(v)} (rank ${slices.ranks[most(r.ms)]})` }]),
    ]));
}

// Series of one kind do not overlap, but a lane may have several beside each other: their union counts.
function kindTime(row, code, from, to) {
  const spans = [];
  for (const lane of row.lanes) {
    for (const series of lane.series) {
      if (series.kind !== code) continue;
      for (let i = Math.max(0, lastAtMost(series.start, from)); i < series.start.length && series.start[i] < to; i++) {
        if (series.end[i] > from) spans.push([Math.max(from, series.start[i]), Math.min(to, series.end[i])]);
      }
    }
  }
  spans.sort((a, b) => a[0] - b[0]);
  let sum = 0, until = -Infinity;
  for (const [start, end] of spans) {
    if (end > until) sum += end - Math.max(start, until);
    until = Math.max(until, end);
  }
  return sum;
}
