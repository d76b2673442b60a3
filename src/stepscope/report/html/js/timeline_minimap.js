// The whole step in a strip below the timeline: what the ranks did on average, and which part of it is in view.

const MAP_HEIGHT = 36;
const MAP_ORDER = ["compute", "transfer", "copy", "wait", "idle"];
const MAP_OF_KIND = { forward: "compute", backward: "compute", optimizer: "compute", other: "compute", transfer: "transfer", unmatched: "transfer", copy: "copy", wait: "wait", idle: "idle" };

/** @param {Slices} slices @param {Row[]} rows @param {any} control */
function minimap(slices, rows, { show, pan, zoom, view }) {
  const canvas = el("canvas", { class: "minimap", tabindex: 0, role: "application",
    "aria-label": "The whole step, mean over ranks; the frame is what the timeline above shows. Arrow keys move it, + and - zoom." });
  /** @type {number | null} */
  let from = null;
  let strip = { key: "", picture: canvas };
  function draw() {
    const { context, scale } = sharp(canvas, view.width, MAP_HEIGHT);
    const wide = Math.max(1, Math.floor(view.width - GUTTER)), key = `${wide} ${scale} ${colour("compute")}`;
    if (strip.key !== key) strip = { key, picture: mapPicture(slices, rows, wide) };
    context.drawImage(strip.picture, GUTTER, 0, wide, MAP_HEIGHT);
    const [left, right] = [view.t0, view.t1].map((t) => GUTTER + (wide * Math.min(slices.span, Math.max(0, t))) / slices.span);
    context.fillStyle = colour("panel");
    context.globalAlpha = 0.65;
    context.fillRect(GUTTER, 0, left - GUTTER, MAP_HEIGHT);
    context.fillRect(right, 0, GUTTER + wide - right, MAP_HEIGHT);
    context.globalAlpha = 1;
    context.strokeStyle = colour("text");
    context.strokeRect(left + 0.5, 0.5, Math.max(2, right - left - 1), MAP_HEIGHT - 1);
    context.fillStyle = colour("quiet");
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(GUTTER > 100 ? "whole step" : "whole", GUTTER - 8, MAP_HEIGHT / 2);
  }
  const timeAt = (e) => ((e.clientX - canvas.getBoundingClientRect().left - GUTTER) / (view.width - GUTTER)) * slices.span;
  const centre = (e) => show(timeAt(e) - (view.t1 - view.t0) / 2, timeAt(e) + (view.t1 - view.t0) / 2);
  // A drag over the whole step chooses a part of it; where a part is in view already, the part moves.
  canvas.addEventListener("pointerdown", (e) => {
    from = view.t1 - view.t0 < 0.98 * slices.span ? null : timeAt(e);
    canvas.setPointerCapture(e.pointerId);
    if (from === null) centre(e);
  });
  canvas.addEventListener("pointermove", (e) => e.buttons && from === null && centre(e));
  canvas.addEventListener("pointerup", (e) => {
    const to = timeAt(e);
    if (from !== null && Math.abs(to - from) > slices.span / 100) show(Math.min(from, to), Math.max(from, to));
  });
  const keys = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(1 / ZOOM), "-": () => zoom(ZOOM), Home: () => show(0, slices.span) };
  canvas.addEventListener("keydown", (e) => {
    if (!keys[e.key]) return;
    e.preventDefault();
    keys[e.key]();
  });
  return { canvas, draw };
}

// The strip itself, drawn once per width and theme: per pixel, the share of the ranks' time that each kind takes.
function mapPicture(slices, rows, wide) {
  const picture = el("canvas", { width: wide, height: MAP_HEIGHT });
  const context = picture.getContext("2d"), shares = mapShares(slices, rows, wide);
  const image = context.createImageData(wide, MAP_HEIGHT), pixels = new Uint32Array(image.data.buffer);
  const back = rgb(colour("panel"));
  pixels.fill(packedColour(back));
  const below = new Float32Array(wide);
  for (const kind of MAP_ORDER) {
    const [r, g, b] = rgb(colour(kind)).map((v, k) => (HATCHED.includes(kind) ? (v + back[k]) / 2 : v));
    const packed = packedColour([r, g, b]);
    for (let x = 0; x < wide; x++) {
      const [low, high] = [below[x], Math.min(1, below[x] + shares[kind][x])];
      for (let y = Math.round(MAP_HEIGHT * (1 - high)); y < Math.round(MAP_HEIGHT * (1 - low)); y++) pixels[y * wide + x] = packed;
      below[x] = high;
    }
  }
  context.putImageData(image, 0, 0);
  return picture;
}

function mapShares(slices, rows, wide) {
  const of = Object.fromEntries(MAP_ORDER.map((kind) => [kind, new Float32Array(wide)]));
  for (const row of rows) {
    for (const lane of row.lanes) {
      for (const series of lane.series) if (MAP_OF_KIND[KINDS[series.kind]]) addShare(series, of[MAP_OF_KIND[KINDS[series.kind]]], slices.span / wide, 1 / rows.length);
    }
  }
  return of;
}

// Slices of a series do not overlap: each adds to the pixels it covers.
function addShare({ start, end }, share, perPixel, weight) {
  for (let i = 0; i < start.length; i++) {
    const from = Math.max(0, start[i] / perPixel), to = Math.min(share.length, end[i] / perPixel);
    for (let x = Math.floor(from); x < to; x++) share[x] += weight * (Math.min(to, x + 1) - Math.max(from, x));
  }
}
