// Ranks x steps: one pixel per cell, scaled up without smoothing, so that a million cells cost as much as one image.

const METRICS = [
  ["step", "step time"], ["own", "own time (without waiting and communication)"], ["compute", "compute"],
  ...["wait", "transfer", "host", "input", "copy"].map((group) => [group, NAMES.groups[group]]),
];
const ORDERS = [["rank", "by rank"], ["host", "by host"], ["value", "largest first"], ["spread", "most uneven first"]];
// cividis from light to dark: even in lightness, and the same for colour-blind readers
const RAMP = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"].reverse().map(rgb);

// How the choices are called in the address, and what they are without it.
const KEPT = { metric: "colour", order: "order" }, USUAL = { metric: "own", order: "rank" };
const oneOf = (pairs, id) => pairs.find(([known]) => known === id)?.[0];

/** @param {Grid} grid @param {any[]} ranks */
function heatmap(grid, ranks) {
  /** @type {{ metric: string, order: string, cell: [number, number] | null }} */
  const own = { ...USUAL, cell: null };
  const label = "Ranks by steps; arrow keys move between cells, Enter shows the rank in the timeline";
  const canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": label });
  const said = el("p", { class: "said", "aria-live": "polite" });
  const scale = el("div", { class: "scale", "aria-hidden": "true" });
  const num = { ranks: grid.ranks.length, steps: grid.steps.length };
  const frame = { left: 52, top: 4, width: 0, height: Math.max(60, Math.min(480, num.ranks * (num.ranks <= 16 ? 22 : 7.5))) };
  const hostOf = new Map(ranks.map((r) => [r.rank, r.host ?? ""]));
  const hosts = grid.ranks.map((rank) => hostOf.get(rank) ?? "");
  let values, rows, low, high, image;

  function compute() {
    values = metricOf(grid, own.metric);
    rows = orderOf(values, num, own.order, hosts);
    [low, high] = rangeOf(values);
    image = imageOf(values, rows, num, low, high);
    const meaning = own.metric === "step" || own.metric === "own" ? "darker is slower" : "darker is more";
    scale.replaceChildren(el("span", {}, timeText(low)), el("span", { class: "ramp" }), el("span", {}, timeText(high)),
      el("span", { class: "quiet" }, meaning));
  }
  function draw() {
    if (!canvas.parentElement?.clientWidth) return;
    frame.width = Math.max(100, canvas.parentElement.clientWidth - frame.left - 2);
    const { context } = sharp(canvas, frame.left + frame.width + 2, frame.top + frame.height + 22);
    context.imageSmoothingEnabled = num.steps > frame.width || num.ranks > frame.height;
    context.drawImage(image, frame.left, frame.top, frame.width, frame.height);
    heatmapLines(context, frame, num);
    nodeLines(context, frame, num, rows.map((r) => hosts[r]));
    heatmapLabels(context, grid, rows, frame, num);
    if (own.cell) {
      const [r, s] = own.cell, [w, h] = [frame.width / num.steps, frame.height / num.ranks];
      context.strokeStyle = colour("selected");
      context.lineWidth = 2;
      context.strokeRect(frame.left + s * w, frame.top + r * h, Math.max(w, 3), Math.max(h, 3));
    }
  }
  /** @returns {[number, number] | null} */
  function at(event) {
    const box = canvas.getBoundingClientRect();
    const s = Math.floor(((event.clientX - box.left - frame.left) / frame.width) * num.steps);
    const r = Math.floor(((event.clientY - box.top - frame.top) / frame.height) * num.ranks);
    return r >= 0 && r < num.ranks && s >= 0 && s < num.steps ? [r, s] : null;
  }
  function linesOf([r, s]) {
    const i = rows[r] * num.steps + s;
    const parts = GROUPS.filter((g) => grid.groups[g][i] > 0).map((g) => `${NAMES.groups[g]} ${timeText(grid.groups[g][i])}`);
    return known(grid.step[i]) ? [`step time ${timeText(grid.step[i])}`, ...parts] : ["not recorded"];
  }
  const titleOfCell = ([r, s]) => `rank ${grid.ranks[rows[r]]}, step ${grid.steps[s]}`;
  function choose(cell) {
    state.set({ cell: `${grid.ranks[rows[cell[0]]]}.${grid.steps[cell[1]]}` });
    point(cell);
    draw();
  }
  function point(cell) {
    own.cell = cell;
    said.replaceChildren(el("b", {}, titleOfCell(cell)), `: ${linesOf(cell).join(", ")} `, chip("rank in the timeline", showRank));
  }
  const showRank = () => own.cell && document.dispatchEvent(new CustomEvent("show-rank", { detail: grid.ranks[rows[own.cell[0]]] }));
  canvas.addEventListener("mousemove", (e) => { const cell = at(e); cell ? tip.show(e, titleOfCell(cell), linesOf(cell)) : tip.hide(); });
  canvas.addEventListener("mouseleave", tip.hide);
  canvas.addEventListener("click", (e) => { const cell = at(e); if (cell) choose(cell); });
  canvas.addEventListener("keydown", (e) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
    if (e.key === "Enter") showRank();
    if (!move) return;
    e.preventDefault();
    const [r, s] = own.cell || [0, 0];
    choose([Math.min(num.ranks - 1, Math.max(0, r + move[0])), Math.min(num.steps - 1, Math.max(0, s + move[1]))]);
  });
  const set = (key, value) => { own[key] = value; own.cell = null; compute(); draw(); };
  const change = (key) => (value) => {
    set(key, value);
    state.set({ [KEPT[key]]: value === USUAL[key] ? null : value, cell: null }, { push: true });
  };
  const used = METRICS.filter(([id]) => id === "step" || id === "own" || grid.used.includes(id));
  const orders = ORDERS.filter(([id]) => id !== "host" || new Set(hosts).size > 1);
  const metrics = select("colour by", used, change("metric")), order = select("order", orders, change("order"));
  function restore() {
    own.metric = oneOf(used, state.get(KEPT.metric)) ?? USUAL.metric;
    own.order = oneOf(orders, state.get(KEPT.order)) ?? USUAL.order;
    own.cell = null;
    metrics.querySelector("select").value = own.metric;
    order.querySelector("select").value = own.order;
    compute();
    const [rank, step] = state.numbers("cell") ?? [], cell = cellOf(rank, step);
    cell ? point(cell) : said.replaceChildren();
  }
  /** @returns {[number, number] | null} */
  function cellOf(rank, step) {
    const r = rows.findIndex((row) => grid.ranks[row] === rank), s = grid.steps.indexOf(step);
    return r >= 0 && s >= 0 ? [r, s] : null;
  }
  document.addEventListener("show-cell", ({ detail: { metric, rank, step } }) => {
    metrics.querySelector("select").value = metric;
    change("metric")(metric);
    const cell = cellOf(rank, step);
    if (cell) choose(cell);
    jump("heatmap");
  });
  const box = panel("heatmap", "Heat map: ranks × steps",
    el("div", { class: "controls" }, metrics, order,
      el("span", { class: "quiet" }, "click a cell, or focus and use the arrow keys")),
    el("div", { class: "canvas-box" }, canvas), el("div", { class: "beside" }, scale, new Set(hosts).size > 1 ? el("span", { class: "quiet" }, "lines separate nodes") : null, said),
    grid.quantum > 0.01 ? el("p", { class: "quiet" }, `Times rounded to at most ${timeText(grid.quantum)}.`) : null);
  restore();
  state.onChange(() => { restore(); draw(); });
  redrawn(draw);
  return box;
}

/** @param {Grid} grid @param {string} id */
function metricOf(grid, id) {
  if (id === "step") return grid.step;
  if (id !== "own") return grid.groups[id];
  return (grid.own ??= ownOf(grid.step, grid.groups.wait, grid.groups.transfer));
}

function ownOf(step, wait, transfer) {
  const own = new Float32Array(step.length);
  for (let i = 0; i < own.length; i++) own[i] = step[i] - wait[i] - transfer[i];
  return own;
}

function orderOf(values, num, order, hosts) {
  const rows = Array.from({ length: num.ranks }, (_, r) => r);
  if (order === "rank") return rows;
  if (order === "host") return rows.sort((a, b) => hosts[a].localeCompare(hosts[b], "en", { numeric: true }) || a - b);
  const key = rows.map((r) => {
    const mine = values.subarray(r * num.steps, (r + 1) * num.steps).filter((v) => v === v);
    return order === "value" ? mine.reduce((a, b) => a + b, 0) / (mine.length || 1) : mine.reduce((a, b) => Math.max(a, b), 0) - median(mine);
  });
  return rows.sort((a, b) => key[b] - key[a]);
}

// Between the 1st and the 99th percentile, so that one outlier does not hide the rest; from a sample if large.
function rangeOf(values) {
  const every = Math.max(1, Math.floor(values.length / 50000));
  const sample = new Float32Array(Math.ceil(values.length / every)).map((_, k) => values[k * every]).filter((v) => v === v).sort();
  if (!sample.length) return [0, 1];
  const low = sample[Math.floor(sample.length * 0.01)], high = sample[Math.min(sample.length - 1, Math.ceil(sample.length * 0.99))];
  // Differences of a few percent are noise to the eye: they stay in the middle of the ramp.
  const middle = (low + high) / 2;
  return [Math.min(low, middle * 0.95), Math.max(high, middle * 1.05) || 1];
}

function imageOf(values, rows, num, low, high) {
  const image = new OffscreenCanvas(num.steps, num.ranks);
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (image.getContext("2d"));
  const data = context.createImageData(num.steps, num.ranks);
  const pixels = new Uint32Array(data.data.buffer);
  const ramp = rampColours();
  const scale = (ramp.length - 1) / (high - low || 1);
  for (let r = 0, at = 0; r < num.ranks; r++) {
    for (let s = 0, i = rows[r] * num.steps; s < num.steps; s++, i++, at++) {
      const v = values[i];
      pixels[at] = v === v ? ramp[Math.max(0, Math.min(ramp.length - 1, Math.round((v - low) * scale)))] : 0;
    }
  }
  context.putImageData(data, 0, 0);
  return image;
}

function rampColours() {
  return Uint32Array.from({ length: 256 }, (_, i) => {
    const x = (i / 255) * (RAMP.length - 1), k = Math.min(RAMP.length - 2, Math.floor(x)), f = x - k;
    const [r, g, b] = RAMP[k].map((c, j) => Math.round(c + (RAMP[k + 1][j] - c) * f));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
}

// Thin lines between cells that are large enough to have them.
function heatmapLines(context, frame, num) {
  const [wide, high] = [frame.width / num.steps, frame.height / num.ranks];
  context.fillStyle = colour("panel");
  if (wide >= 6) for (let s = 1; s < num.steps; s++) context.fillRect(Math.round(frame.left + s * wide), frame.top, 1, frame.height);
  if (high >= 6) for (let r = 1; r < num.ranks; r++) context.fillRect(frame.left, Math.round(frame.top + r * high), frame.width, 1);
}

// A line where the next row is on another node, in an order that keeps nodes together.
function nodeLines(context, frame, num, hosts) {
  const edges = hosts.flatMap((host, r) => (r && host !== hosts[r - 1] ? [r] : []));
  if (edges.length >= num.ranks / 2) return;
  context.fillStyle = colour("selected");
  for (const r of edges) context.fillRect(0, Math.round(frame.top + (r * frame.height) / num.ranks) - 1, frame.left + frame.width, 2);
}

function heatmapLabels(context, grid, rows, frame, num) {
  context.fillStyle = colour("quiet");
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "middle";
  const each = Math.max(1, Math.ceil((num.ranks * 14) / frame.height));
  const [wide, high] = [frame.width / num.steps, frame.height / num.ranks];
  for (let r = 0; r < num.ranks; r += each) context.fillText(`r${grid.ranks[rows[r]]}`, frame.left - 6, frame.top + (r + 0.5) * high);
  context.textAlign = "center";
  context.textBaseline = "top";
  const every = Math.max(1, Math.ceil((num.steps * 48) / frame.width));
  for (let s = 0; s < num.steps; s += every) context.fillText(grid.steps[s], frame.left + (s + 0.5) * wide, frame.top + frame.height + 6);
}
