// Slices prepared for drawing: per rank and lane, series of one kind that do not overlap, with sums of their lengths.
// The share of any pixel that a kind fills is then a difference of two sums, however many slices lie in it.

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
    if (!lists.has(key)) lists.set(key, { kind, start: [], end: [], sum: [0] });
    const list = lists.get(key);
    list.start.push(start);
    list.end.push(end);
    list.sum.push(list.sum.at(-1) + end - start);
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
  return [...lists.values()];
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
function addSeries(series, line, [r, g, b], t0, perPixel, strength) {
  const { start, end, sum } = series;
  const width = line.full.length;
  let i = lastAtMost(start, t0);
  let before = i < 0 ? 0 : sum[i] + Math.min(t0, end[i]) - start[i];
  for (let x = 0; x < width; x++) {
    const t = t0 + (x + 1) * perPixel;
    if (i + 1 < start.length && start[i + 1] <= t) i = lastAtMost(start, t, i + 1);
    const now = i < 0 ? 0 : sum[i] + Math.min(t, end[i]) - start[i];
    if (now > before) {
      const share = Math.min(1, (now - before) / perPixel);
      line.red[x] += share * r;
      line.green[x] += share * g;
      line.blue[x] += share * b;
      line.full[x] += share;
      line.shown[x] = Math.max(line.shown[x], strength);
    } else if (i + 1 >= start.length && t > end[start.length - 1]) break;
    before = now;
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
