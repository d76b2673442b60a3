// One picture of the timeline: bars as pixels, then labels, arrows and the axis on top.

const GUTTER = window.innerWidth < 600 ? 58 : 106;
const AXIS = 22;
const ROW_GAP = 4;
const DIMMED = 0.25;

/** @type {(canvas: HTMLCanvasElement, slices: Slices, rows: Row[], members: Map<number, number[]>, view: View) => void} */
function drawTimeline(canvas, slices, rows, members, view) {
  const { context, scale } = sharp(canvas, view.width, view.height);
  const palette = KINDS.map((kind) => rgb(colour(kind)));
  const look = {
    palette, back: rgb(colour("panel")), selected: colour("selected"), text: colour("text"), quiet: colour("quiet"),
    font: "11px system-ui, sans-serif",
  };
  const image = imageFor(canvas, context);
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(packedColour(look.back));
  const shown = visibleRows(rows, view);
  for (const place of shown) drawBars(pixels, canvas, slices, place, view, look, scale);
  context.putImageData(image, 0, 0);
  for (const place of shown) drawLabels(context, slices, place, view, look);
  drawSelected(context, slices, members, view, look, shown);
  if (view.cursor !== null) drawCursor(context, slices, view, look);
  if (view.range) drawRange(context, view, look);
  drawAxis(context, view, look);
}

// The picture of the last time where it is as large: its pixels are all written anew.
let lastImage = new ImageData(1, 1);
/** @type {(canvas: HTMLCanvasElement, context: CanvasRenderingContext2D) => ImageData} */
function imageFor(canvas, context) {
  if (lastImage.width !== canvas.width || lastImage.height !== canvas.height) lastImage = context.createImageData(canvas.width, canvas.height);
  return lastImage;
}

/** @type {(colour: Rgb) => number} */
const packedColour = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
const rowHeight = (view) => view.lanes.length * view.laneHeight + ROW_GAP;
const timeX = (view, t) => GUTTER + ((t - view.t0) / (view.t1 - view.t0)) * (view.width - GUTTER);

// Rows and lanes inside the picture, with their places.
function visibleRows(rows, view) {
  const places = [];
  const high = rowHeight(view);
  const first = Math.max(0, Math.floor(view.top / high));
  for (let r = first; r < rows.length && r * high - view.top < view.height - AXIS; r++) {
    const y = r * high - view.top;
    places.push({ row: rows[r], y, lanes: view.lanes.map((lane, k) => ({ ...rows[r].lanes[lane], y: y + k * view.laneHeight })) });
  }
  return places;
}

function drawBars(pixels, canvas, slices, place, view, look, scale) {
  const left = Math.round(GUTTER * scale), width = canvas.width - left;
  const perPixel = (view.t1 - view.t0) / width;
  const bottom = Math.round((view.height - AXIS) * scale);
  for (const lane of place.lanes) {
    const height = view.laneHeight - (view.laneHeight > 5 ? 1 : 0);
    const from = Math.max(0, Math.round(lane.y * scale)), to = Math.min(bottom, Math.round((lane.y + height) * scale));
    if (to <= from || lane.from === lane.to) continue;
    const { line, strokes, hatched } = lineOf(slices, lane, view, look, width, perPixel);
    for (let y = from; y < to; y++) {
      const at = y * canvas.width + left;
      pixels.set(line, at);
      for (const x of hatched) if ((x + y) % HATCH < HATCH / 3) pixels[at + x] = strokes[x];
    }
  }
}

const HATCH = 7;
const HATCHED = ["wait", "idle"];

// One line of pixels of a lane, the same for all its height but for the strokes over what waits.
function lineOf(slices, lane, view, look, width, perPixel) {
  const { red, green, blue, full, busy, out, strokes } = emptyLine(width), line = { red, green, blue, full };
  const strength = isDimming(view) ? DIMMED : 1;
  const waiting = lane.series.filter(isHatched);
  for (const series of lane.series) if (!isHatched(series)) addSeries(series, line, look.palette[series.kind], view.t0, perPixel);
  if (waiting.length) busy.set(full);
  for (const series of waiting) addSeries(series, line, look.palette[series.kind], view.t0, perPixel);
  const hatched = [];
  const [br, bg, bb] = look.back, ground = packedColour(look.back);
  // The colour of a pixel that is covered so far.
  const mixed = (x, a) => {
    const k = a / full[x];
    return ((255 << 24) | ((bb * (1 - a) + blue[x] * k) << 16) | ((bg * (1 - a) + green[x] * k) << 8) | (br * (1 - a) + red[x] * k)) >>> 0;
  };
  for (let x = 0; x < width; x++) {
    if (full[x] <= 0) { out[x] = ground; continue; }
    // A trace of a slice stays visible, however small its share of the pixel.
    out[x] = mixed(x, (0.15 + 0.85 * Math.min(1, full[x])) * strength);
    if (!waiting.length || full[x] < 0.5 || busy[x] > 0.5 * full[x]) continue;
    hatched.push(x);
    strokes[x] = out[x]; // the strokes are the colour itself, and what is between them a tint of it
    out[x] = mixed(x, TINT * strength);
  }
  markSlices(out, slices, lane, view, look, perPixel);
  if (hatched.length) markSlices(strokes, slices, lane, view, look, perPixel);
  return { line: out, strokes, hatched };
}

// Room for one line, used again for every lane: a picture has hundreds of them.
const emptyLine = (() => {
  /** @type {(width: number) => any} */
  const room = (width) => ({
    ...Object.fromEntries(["red", "green", "blue", "full", "busy"].map((name) => [name, new Float32Array(width)])),
    out: new Uint32Array(width), strokes: new Uint32Array(width),
  });
  let last = room(1);
  return (width) => {
    if (last.out.length !== width) last = room(width);
    else for (const name of ["red", "green", "blue", "full"]) last[name].fill(0);
    return last;
  };
})();

const TINT = 0.35;
const isHatched = (series) => HATCHED.includes(KINDS[series.kind]);

// Edges between wide slices, and whatever search or selection highlights.
function markSlices(out, slices, lane, view, look, perPixel) {
  const strong = packedColour(rgb(look.selected)), edge = packedColour(look.back);
  for (let i = firstVisible(lane, view.t0); i < lane.to && slices.start[i] < view.t1; i++) {
    const from = (slices.start[i] - view.t0) / perPixel, to = from + slices.dur[i] / perPixel;
    if (isMarked(slices, i, view)) out.fill(strong, Math.max(0, Math.floor(from)), Math.max(1, Math.ceil(to)));
    if (to - from > 5 && to >= 1 && to < out.length) out[Math.floor(to) - 1] = edge;
  }
}

const isDimming = (view) => view.marks !== null || view.match !== null;
const isMarked = (slices, i, view) => (view.marks ? view.marks(i) : view.match !== null && slices.match[i] === view.match);

function firstVisible(lane, t0) {
  return lane.until ? lane.from + lastAtMost(lane.until, t0) + 1 : lane.to;
}

function drawLabels(context, slices, place, view, look) {
  const high = rowHeight(view);
  context.font = look.font;
  context.textBaseline = "middle";
  const chosen = view.rank === place.row.rank, named = view.laneHeight >= 11 && GUTTER > 100;
  context.fillStyle = chosen ? look.selected : named ? look.text : look.quiet;
  context.textAlign = named ? "left" : "right";
  if (high >= 11 || place.row.index % Math.ceil(11 / high) === 0) context.fillText(`rank ${place.row.rank}`, named ? 0 : GUTTER - 8, place.y + (high - ROW_GAP) / 2);
  if (named) {
    context.textAlign = "right";
    context.fillStyle = look.quiet;
    place.lanes.forEach((lane, k) => context.fillText(LANES[view.lanes[k]], GUTTER - 8, lane.y + view.laneHeight / 2));
  }
  if (chosen) {
    context.strokeStyle = look.selected;
    context.lineWidth = 1.5;
    context.strokeRect(GUTTER - 1, place.y - 1.5, view.width - GUTTER, high - 1);
  }
  if (view.laneHeight >= 11) for (const lane of place.lanes) drawNames(context, slices, lane, view, look);
}

const NAME_PX = 6.8;

// Names inside the slices that are wide enough, up to where the next slice begins.
function drawNames(context, slices, lane, view, look) {
  context.textAlign = "left";
  for (let i = firstVisible(lane, view.t0); i < lane.to && slices.start[i] < view.t1; i++) {
    const follows = i + 1 < lane.to ? timeX(view, slices.start[i + 1]) : view.width;
    // The name of a transfer stands after its wait, where that is the shorter part.
    const begin = slices.start[i] + (slices.wait[i] > slices.dur[i] / 2 ? 0 : slices.wait[i]);
    const from = Math.max(GUTTER, timeX(view, begin)), to = Math.min(view.width, follows, timeX(view, slices.start[i] + slices.dur[i]));
    if (to - from < 30) continue;
    const marked = isMarked(slices, i, view);
    const kind = slices.wait[i] > slices.dur[i] / 2 ? KINDS.indexOf("wait") : slices.kind[i];
    const dim = isDimming(view) && !marked;
    const tinted = !marked && HATCHED.includes(KINDS[kind]);
    const text = fittingName(slices, i, Math.floor((to - from - 6) / NAME_PX));
    if (!text) continue;
    if (tinted && !dim) drawPlate(context, look, from, lane.y, context.measureText(text).width + 5, view.laneHeight);
    context.fillStyle = dim ? look.quiet : tinted ? look.text : inkOn(marked ? rgb(look.selected) : look.palette[kind]);
    context.fillText(text, from + 3, lane.y + view.laneHeight / 2);
  }
}

// Plain ground below a name, so that strokes do not run through its letters.
function drawPlate(context, look, x, y, width, height) {
  context.fillStyle = `rgb(${look.back.join(" ")} / 0.82)`;
  context.fillRect(x + 1, y + 1.5, width, height - 4);
}

const LEAST_NAME = 8; // letters of a name that is cut off: fewer tell nothing

// A wait by whom it is for, a collective by what it does and its size, anything else by its name; in as many letters as
// there is room for, empty where those say nothing.
function fittingName(slices, i, room) {
  const m = slices.match[i];
  if (m < 0) {
    const name = shortName(slices.names[slices.name[i]]);
    return name.length <= room ? name : room >= LEAST_NAME ? name.slice(0, room) : "";
  }
  const last = slices.matched.last[m], what = slices.matched.what[m].split(" · ");
  const ways = slices.wait[i] > slices.dur[i] / 2 ? [`waiting for rank ${last}`, `for rank ${last}`, `rank ${last}`] : [`${what[0]} ${what.at(-1)}`, what[0]];
  return ways.find((text) => text.length <= room) ?? "";
}

const inkOn = ([r, g, b]) => (0.3 * r + 0.59 * g + 0.11 * b > 150 ? "#10151a" : "#ffffff");

// The selected collective: its members joined, from the last to arrive to those who waited.
function drawSelected(context, slices, members, view, look, shown) {
  const chosen = view.match !== null ? [view.match] : view.arrows ? visibleMatches(slices, shown, view) : [];
  if (!chosen.length) return;
  context.save();
  context.beginPath();
  context.rect(GUTTER, 0, view.width - GUTTER, view.height - AXIS);
  context.clip();
  context.strokeStyle = context.fillStyle = view.match !== null ? look.selected : look.text;
  context.globalAlpha = view.match !== null ? 1 : 0.45;
  context.lineWidth = view.match !== null ? 1.5 : 1;
  const high = rowHeight(view), lane = view.lanes.indexOf(1);
  /** @type {(i: number) => [number, number]} */
  const point = (i) => [timeX(view, slices.start[i]), slices.rank[i] * high - view.top + (lane + 0.5) * view.laneHeight];
  for (const m of chosen) {
    const list = members.get(m);
    const last = list.reduce((a, b) => (slices.start[b] > slices.start[a] ? b : a));
    for (const i of list) if (i !== last) arrow(context, point(last), [timeX(view, slices.start[i] + slices.wait[i]), point(i)[1]]);
  }
  context.restore();
}

// A frame around the slice that the keys have reached.
function drawCursor(context, slices, view, look) {
  const i = view.cursor, lane = view.lanes.indexOf(LANE_OF_KIND[slices.kind[i]]);
  const from = Math.max(GUTTER, timeX(view, slices.start[i])), to = Math.min(view.width - 1, timeX(view, slices.start[i] + slices.dur[i]));
  const y = slices.rank[i] * rowHeight(view) - view.top + lane * view.laneHeight;
  if (to < GUTTER || from > view.width || y < -view.laneHeight || y > view.height - AXIS) return;
  context.strokeStyle = look.text;
  context.lineWidth = 2;
  context.strokeRect(from - 1, y - 1, Math.max(3, to - from + 2), view.laneHeight + 1);
}

// The range that sums are of.
function drawRange(context, view, look) {
  const [from, to] = view.range.map((t) => Math.min(view.width, Math.max(GUTTER, timeX(view, t))));
  context.fillStyle = look.selected;
  context.globalAlpha = 0.12;
  context.fillRect(from, 0, to - from, view.height - AXIS);
  context.globalAlpha = 1;
  for (const x of [from, to]) context.fillRect(x - 0.5, 0, 1, view.height - AXIS);
}

const MAX_ARROWS = 400;

function visibleMatches(slices, shown, view) {
  const found = new Set();
  for (const place of shown) {
    for (const lane of place.lanes) {
      for (let i = firstVisible(lane, view.t0); i < lane.to && slices.start[i] < view.t1; i++) if (slices.match[i] >= 0) found.add(slices.match[i]);
    }
  }
  return [...found].slice(0, MAX_ARROWS);
}

function arrow(context, [x0, y0], [x1, y1]) {
  const angle = Math.atan2(y1 - y0, x1 - x0);
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
  context.beginPath();
  context.moveTo(x1, y1);
  for (const turn of [-0.4, 0.4]) context.lineTo(x1 - 7 * Math.cos(angle + turn), y1 - 7 * Math.sin(angle + turn));
  context.fill();
}

function drawAxis(context, view, look) {
  const y = view.height - AXIS;
  context.fillStyle = colour("panel");
  context.fillRect(0, y, view.width, AXIS);
  context.fillStyle = look.quiet;
  context.strokeStyle = colour("line");
  context.font = look.font;
  context.textBaseline = "top";
  context.textAlign = "center";
  const step = niceStep((view.t1 - view.t0) / Math.max(2, (view.width - GUTTER) / (GUTTER > 100 ? 130 : 80)));
  for (let t = Math.ceil(view.t0 / step) * step; t <= view.t1; t += step) {
    const x = timeX(view, t);
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, y + 3);
    context.globalAlpha = 0.5;
    context.stroke();
    context.globalAlpha = 1;
    if (x > GUTTER + 14 && x < view.width - 24) context.fillText(timeText(Math.abs(t) < step / 1e6 ? 0 : t), x, y + 6);
  }
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * (rough / power > 5 ? 10 : rough / power > 2.5 ? 5 : rough / power > 2 ? 2.5 : rough / power > 1 ? 2 : 1);
}
