// Where on the page a finding can be seen: slices of the timeline, a metric of the heat map, rows of a table, a section.

const COMM = { kinds: ["transfer", "unmatched"], metric: "transfer", rows: ["collectives", ""] };
const LATE = { late: true, metric: "own" };
const SEEN_IN = {
  "straggler": LATE, "load-imbalance": { ...LATE, metric: "compute" }, "expert-imbalance": { ...LATE, metric: "compute", section: "strategy" },
  "data-loading": { idle: /^data loading/, metric: "input", rows: ["idle", ""] }, "launch-overhead": { idle: /^kernel-launch/, metric: "host", rows: ["idle", ""] },
  "host-device-sync": { idle: /^host synchronisation/, metric: "host", rows: ["idle", ""] }, "host-stall": { idle: /^(host stalled|garbage)/, metric: "host", rows: ["idle", ""] },
  "recompilation": { metric: "host", rows: ["idle", ""] }, "host-work": { idle: /^host stalled/, metric: "host", rows: ["idle", ""] },
  "allocator": { idle: /^memory allocation/, metric: "host", rows: ["idle", ""] }, "host-to-device-copy": { kinds: ["copy"], metric: "copy" },
  "communication-bound": COMM, "no-overlap": { ...COMM, section: "strategy" }, "too-many-small-collectives": { ...COMM, section: "strategy" },
  "redundant-communication": COMM, "slow-link": COMM, "pipeline-bubble": { waits: true, metric: "wait", section: "strategy" },
  "optimizer": { kinds: ["optimizer"], rows: ["kernels", "optimizer"] }, "recomputation": { rows: ["operators", ""], metric: "compute" },
  "precision": { family: "gemm", rows: ["kernels", "gemm"] }, "memory-bound-attention": { family: "attention", rows: ["kernels", "attention"] },
  "memory-bound-kernels": { family: "elementwise", rows: ["kernels", "elementwise"] }, "mixed-precision-overhead": { rows: ["kernels", ""] },
  "small-batch": { rows: ["kernels", ""] }, "memory-pressure": { section: "memory" }, "profiler-overhead": { section: "trust" },
};

const tell = (event, detail) => document.dispatchEvent(new CustomEvent(event, { detail }));
const chip = (text, run) => el("button", { type: "button", class: "chip", on: { click: run } }, text);

// Pairs of a button's text and what it does.
function placesOf(finding, grid) {
  const seen = SEEN_IN[finding.id] ?? {}, places = [["timeline", () => tell("show-finding", finding)]];
  const worst = grid && grid.ranks.length > 1 && seen.metric && worstCell(grid, seen.metric, finding.ranks);
  if (worst) places.push([`slowest: rank ${worst.rank}, step ${worst.step}, ${METRICS.find(([id]) => id === seen.metric)?.[1].replace(/ \(.*/, "")} ${timeText(worst.ms)} (profiled)`, () => tell("show-cell", worst)]);
  if (seen.rows) places.push([seen.rows[0] === "idle" ? "idle by cause" : seen.rows[1] ? `${seen.rows[1]} ${seen.rows[0]}` : seen.rows[0], () => tell("show-rows", seen.rows)]);
  if (seen.section) places.push([seen.section, () => jump(seen.section)]);
  return places;
}

// The cell where a metric is largest, among the finding's ranks where it names some.
/** @param {Grid} grid @param {string} metric @param {number[]} ranks */
function worstCell(grid, metric, ranks) {
  const values = metricOf(grid, metric), steps = grid.steps.length;
  /** @type {{ metric: string, rank: number, step: number, ms: number } | null} */
  let best = null;
  for (const [r, rank] of grid.ranks.entries()) {
    if (ranks.length && !ranks.includes(rank)) continue;
    for (let s = 0; s < steps; s++) {
      const ms = values[r * steps + s];
      if (ms > 0 && (best === null || ms > best.ms)) best = { metric, rank, step: grid.steps[s], ms };
    }
  }
  return best;
}

// What of a step a finding is about: which slices are marked, of which rank, and the time around the longest of them.
/** @type {(finding: any, slices: Slices, families: Map<string, string>) => Focus | null} */
function focusOf(finding, slices, families) {
  const seen = SEEN_IN[finding.id] ?? {}, ranks = new Set(finding.ranks);
  const late = seen.late ? lateArrival(slices, ranks) : null;
  if (late) return late;
  const lines = (finding.where ?? []).filter((w) => w.file !== null).map((w) => `${w.file}:${w.line}`);
  const families_ = slices.names.map((name) => families.get(name) === seen.family), idle = slices.names.map((name) => seen.idle?.test(name));
  const atLine = (i) => lines.includes(slices.launches[slices.launch[i]]?.line ?? "") || lines.some((line) => slices.names[slices.name[i]].endsWith(`: ${line}`));
  const isKind = (i) => seen.kinds?.includes(KINDS[slices.kind[i]]) || (seen.waits && slices.wait[i] > 0) || (seen.family && families_[slices.name[i]])
    || (seen.idle && KINDS[slices.kind[i]] === "idle" && idle[slices.name[i]]);
  const ofRank = (i) => !ranks.size || ranks.has(slices.ranks[slices.rank[i]]);
  // What a line launched is no idle time of the device.
  const ofLine = (i) => atLine(i) && (!seen.idle || KINDS[slices.kind[i]] === "idle");
  for (const marks of [(i) => ofRank(i) && atLine(i) && isKind(i), (i) => ofRank(i) && isKind(i), (i) => ofRank(i) && ofLine(i)]) {
    const longest = longestOf(slices, marks);
    if (longest !== null) return focusAround(slices, longest, marks);
  }
  return null;
}

// The collective at which a rank let the others wait longest, and what that rank did meanwhile.
function lateArrival(slices, ranks) {
  const waited = new Map();
  for (let i = 0; i < slices.match.length; i++) {
    const m = slices.match[i];
    if (m >= 0 && ranks.has(slices.matched.last[m])) waited.set(m, Math.max(waited.get(m) ?? 0, slices.wait[i]));
  }
  if (!waited.size) return null;
  const [match, wait] = [...waited].reduce((a, b) => (b[1] > a[1] ? b : a));
  let from = Infinity, to = -Infinity;
  for (let i = 0; i < slices.match.length; i++) if (slices.match[i] === match) { from = Math.min(from, slices.start[i]); to = Math.max(to, slices.start[i]); }
  const rank = slices.matched.last[match];
  const isCause = (i) => slices.ranks[slices.rank[i]] === rank && slices.match[i] < 0 && KINDS[slices.kind[i]] !== "range" && slices.start[i] < to && slices.start[i] + slices.dur[i] > from;
  const sums = new Map();
  for (let i = 0; i < slices.start.length; i++) {
    if (isCause(i)) sums.set(slices.kind[i], (sums.get(slices.kind[i]) ?? 0) + Math.min(slices.start[i] + slices.dur[i], to) - Math.max(slices.start[i], from));
  }
  const [most] = [...sums].sort((a, b) => b[1] - a[1])[0] ?? [null], idle = most !== null && KINDS[most] === "idle";
  const longest = idle ? longestOf(slices, (i) => isCause(i) && slices.kind[i] === most) : null, pad = Math.max(0.15 * (to - from), slices.span / 100);
  const what = longest !== null ? shortName(slices.names[slices.name[longest]]) : most === null ? "" : NAMES.kinds[KINDS[most]];
  const meanwhile = what && ` Rank ${rank} meanwhile: ${what}.`;
  return { rank, row: slices.ranks.indexOf(rank), marks: isCause, from: from - pad, to: to + pad, said: `Longest wait for rank ${rank} in this step: ${timeText(wait)} (profiled).${meanwhile}` };
}

function longestOf(slices, marks) {
  /** @type {number | null} */
  let best = null;
  for (let i = 0; i < slices.start.length; i++) if (marks(i) && (best === null || slices.dur[i] > slices.dur[best])) best = i;
  return best;
}

function focusAround(slices, i, marks) {
  const [start, dur] = [slices.start[i], slices.dur[i]], wide = Math.max(2.5 * dur, slices.span / 6);
  const rank = slices.ranks[slices.rank[i]], from = Math.max(0, start + dur / 2 - wide / 2);
  const isAll = wide > 0.8 * slices.span;
  return { rank: null, row: slices.rank[i], marks, from: isAll ? 0 : from, to: isAll ? slices.span : from + wide, said: `Longest, on rank ${rank}: ${shortName(slices.names[slices.name[i]])}, ${timeText(dur)} (profiled).` };
}
