// Where on the page a finding can be seen: a section, a metric of the heatmap, a kind of slice, rows of a table.

const METRIC_OF = {
  "straggler": "own", "load-imbalance": "compute", "data-loading": "input", "launch-overhead": "host", "host-device-sync": "host",
  "host-stall": "host", "allocator": "host", "host-to-device-copy": "copy", "communication-bound": "transfer", "no-overlap": "transfer",
  "too-many-small-collectives": "transfer", "redundant-communication": "transfer", "slow-link": "transfer", "pipeline-bubble": "wait",
  "expert-imbalance": "compute", "recomputation": "compute",
};
const KINDS_OF = {
  "communication-bound": ["transfer", "unmatched"], "no-overlap": ["transfer", "unmatched"], "too-many-small-collectives": ["transfer", "unmatched"],
  "redundant-communication": ["transfer", "unmatched"], "slow-link": ["transfer", "unmatched"], "optimizer": ["optimizer"],
  "host-to-device-copy": ["copy"], "straggler": [], "pipeline-bubble": ["transfer", "unmatched"],
};
const ROWS_OF = {
  "communication-bound": ["collectives", ""], "no-overlap": ["collectives", ""], "too-many-small-collectives": ["collectives", ""],
  "redundant-communication": ["collectives", ""], "slow-link": ["collectives", ""], "precision": ["kernels", "gemm"],
  "mixed-precision-overhead": ["kernels", ""], "memory-bound-attention": ["kernels", "attention"], "memory-bound-kernels": ["kernels", "elementwise"],
  "small-batch": ["kernels", ""], "optimizer": ["kernels", "optimizer"], "recomputation": ["operators", ""], "launch-overhead": ["idle", ""],
  "host-device-sync": ["idle", ""], "host-stall": ["idle", ""], "allocator": ["idle", ""], "data-loading": ["idle", ""],
};
const SECTION_OF = {
  "pipeline-bubble": "strategy", "expert-imbalance": "strategy", "memory-pressure": "memory", "profiler-overhead": "trust",
  "no-overlap": "strategy", "too-many-small-collectives": "strategy",
};

const tell = (event, detail) => document.dispatchEvent(new CustomEvent(event, { detail }));
const chip = (text, run) => el("button", { type: "button", class: "chip", on: { click: run } }, text);

// Pairs of a button's text and what it does. Sections that this page lacks are dropped once the page is whole.
function placesOf(finding, grid) {
  const places = finding.ranks.slice(0, 4).map((rank) => [`rank ${rank} in the timeline`, () => tell("show-rank", rank)]);
  const worst = grid && METRIC_OF[finding.id] && worstCell(grid, METRIC_OF[finding.id], finding.ranks);
  if (worst) places.push([`rank ${worst.rank}, step ${worst.step}: ${timeText(worst.ms)}`, () => tell("show-cell", worst)]);
  if (KINDS_OF[finding.id]?.length) places.push([`${words(KINDS_OF[finding.id][0])} in the timeline`, () => tell("show-kinds", KINDS_OF[finding.id])]);
  const rows = ROWS_OF[finding.id];
  if (rows) places.push([rows[1] ? `${rows[1]} ${rows[0]}` : rows[0], () => tell("show-rows", rows)]);
  const section = SECTION_OF[finding.id];
  if (section) places.push([section, () => jump(section)]);
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
