// Elements made without any markup text: whatever a name holds, it is shown and never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, run] of Object.entries(value)) node.addEventListener(event, run);
    else if (key === "style") for (const [name, text] of Object.entries(value)) node.style.setProperty(name, text);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

/** @type {(tag: string, attributes?: object | null, ...children: any[]) => any} */
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
/** @type {(tag: string, attributes?: object | null, ...children: any[]) => any} */
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// An element of the page's template.
/** @type {(id: string) => HTMLElement} */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

function panel(id, title, ...children) {
  return el("section", { id, class: "panel", "aria-labelledby": `${id}-title` },
    el("h2", { id: `${id}-title` }, title), ...children);
}

// Letters in a picture grow with it: it is never drawn so large that they stand out from the text around it.
const MAX_GROWTH = 1.2;

function picture(width, height, label, growth = MAX_GROWTH) {
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  chart.style.maxWidth = `${width * growth}px`;
  return chart;
}

// One entry per colour: what has the same colour shares it.
function legend(entries) {
  const texts = new Map();
  for (const [name, text] of entries) texts.set(name, [...(texts.get(name) ?? []), text]);
  return el("ul", { class: "legend" }, [...texts].map(([name, list]) =>
    el("li", {}, el("span", { class: "swatch", style: { background: `var(--${name})` } }), list.join(", "))));
}

function select(label, options, change) {
  const box = el("select", { on: { change: () => change(box.value) } },
    options.map(([value, text]) => el("option", { value }, text)));
  return el("label", {}, label, " ", box);
}

function folded(summary, ...children) {
  return el("details", {}, el("summary", {}, summary), ...children);
}

// What is built when it is opened first: a page has many tables and few are looked at.
function foldedLater(summary, make) {
  const box = folded(summary);
  box.addEventListener("toggle", () => box.append(make()), { once: true });
  return box;
}

// The tooltip that follows the pointer over a canvas or a chart; screen readers get the live regions instead.
const tip = (() => {
  const box = el("div", { class: "tip", "aria-hidden": "true", hidden: true });
  const hide = () => (box.hidden = true);
  const show = (event, title, lines) => {
    if (!box.isConnected) document.body.append(box);
    box.replaceChildren(el("strong", {}, title), ...lines.map((line) => el("div", {}, line)));
    box.hidden = false;
    const { innerWidth: w, innerHeight: h } = window;
    box.style.left = `${Math.max(4, Math.min(event.clientX + 14, w - box.offsetWidth - 8))}px`;
    box.style.top = `${event.clientY + 18 + box.offsetHeight > h ? event.clientY - box.offsetHeight - 12 : event.clientY + 18}px`;
  };
  return { show, hide };
})();

// Shows a section; the page opens the tab that holds it first.
function jump(id) {
  document.dispatchEvent(new CustomEvent("open-section", { detail: id }));
  const target = document.getElementById(id);
  if (!target) return;
  target.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

// A canvas as sharp as the screen; returns its context in CSS pixels and the scale.
/** @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
function sharp(canvas, width, height) {
  const scale = Math.min(window.devicePixelRatio || 1, 2);
  const wide = Math.max(1, Math.round(width * scale)), high = Math.max(1, Math.round(height * scale));
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, scale };
}

// What must be drawn again when the width or the colours change.
/** @type {(() => void)[]} */
const redraws = [];
function redrawn(draw) {
  redraws.push(draw);
  return draw;
}
