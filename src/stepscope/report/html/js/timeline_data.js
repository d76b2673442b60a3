// Slices prepared for drawing: per rank and lane, series of one kind that do not overlap, so that the share of a pixel
// that a kind fills is the sum of what its slices cover of it.

const MAX_TRACKS = 6;

/** @type {(slices: Slices) => Row[]} */
function timelineRows(slices) {
  /** @type {Row[]} */
  const rows = slices.ranks.map((rank, index) => ({ rank, index, lanes: LANES.map(() => ({ from: 0, to: 0, series: [] })) }));
  const num = slices.start.length;
  for (let from = 0; from < num; ) {
    const [rank, lane] = [slices.rank[from], LANE_OF_KIND[slices.kind[from]]];
    let to = from + 1;
    while (to < num && slices.rank[to] === rank && LANE_OF_KIND[slices.kind[to]] === lane) to++;
    rows[rank].lanes[lane] = { from, to, series: seriesOf(slices, from, to), until: endsUntil(slices, from, to) };
    from = to;
  }
  return rows;
}

// The latest end of any slice up to each one: where drawing may begin.
function endsUntil(slices, from, to) {
  const out = new Float64Array(to - from);
  let latest = -Infinity;
  for (let i = from; i < to; i++) out[i - from] = latest = Math.max(latest, slices.start[i] + slices.dur[i]);
  return out;
}

function seriesOf(slices, from, to) {
  const ends = [], lists = new Map();
  const push = (track, kind, start, end) => {
    const key = track * KINDS.length + kind;
    if (!lists.has(key)) lists.set(key, { kind, start: [], end: [] });
    const list = lists.get(key);
    list.start.push(start);
    list.end.push(end);
  };
  for (let i = from; i < to; i++) {
    const [start, end, kind] = [slices.start[i], slices.start[i] + slices.dur[i], slices.kind[i]];
    let track = ends.findIndex((e) => e <= start + 1e-4);
    if (track < 0) track = Math.min(ends.length, MAX_TRACKS - 1);
    ends[track] = end;
    const turn = start + slices.wait[i];
    if (slices.wait[i] > 0) push(track, KINDS.indexOf("wait"), start, turn);
    if (turn < end) push(track, kind, turn, end);
  }
  return [...lists.values()].map(({ kind, start, end }) => ({ kind, start: Float64Array.from(start), end: Float64Array.from(end) }));
}

// The last index whose value is at most `x`, -1 where there is none.
function lastAtMost(values, x, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// Adds a series to a line of pixels: red, green, blue and how full each is.
function addSeries({ start, end }, { red, green, blue, full }, [r, g, b], t0, perPixel) {
  const width = full.length, t1 = t0 + width * perPixel;
  const add = (x, share) => {
    red[x] += share * r;
    green[x] += share * g;
    blue[x] += share * b;
    full[x] += share;
  };
  for (let i = Math.max(0, lastAtMost(start, t0)); i < start.length && start[i] < t1; i++) {
    if (end[i] <= t0) continue;
    const from = Math.max(0, (start[i] - t0) / perPixel), to = Math.min(width, (end[i] - t0) / perPixel);
    const first = Math.floor(from), last = Math.min(width - 1, Math.floor(to));
    if (first === last) { add(first, to - from); continue; }
    add(first, first + 1 - from);
    for (let x = first + 1; x < last; x++) add(x, 1);
    add(last, to - last);
  }
}

// Members of each matched collective, in the order of the ranks.
/** @type {(slices: Slices) => Map<number, number[]>} */
function membersOf(slices) {
  const members = new Map();
  for (let i = 0; i < slices.match.length; i++) {
    const m = slices.match[i];
    if (m < 0) continue;
    if (!members.has(m)) members.set(m, []);
    members.get(m)?.push(i);
  }
  return members;
}
