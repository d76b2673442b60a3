// Pictures that come as shapes (report/drawing.py): a notebook shows the same ones.

/** @param {Drawing} d @param {{ heading?: boolean }} [options] */
function drawn(d, { heading = true } = {}) {
  const chart = picture(d.size[0], d.size[1], d.label, d.size[0] > 1000 ? MAX_GROWTH : 1.05);
  // Below this its letters could not be read: a phone scrolls it.
  chart.style.setProperty("--least", `${d.size[0] > 1000 ? 760 : d.size[0] <= 460 ? 0 : 0.85 * d.size[0]}px`);
  const said = new WeakMap(), numbers = d.table;
  for (const shape of d.shapes) {
    const node = shapeOf(shape);
    if (shape.tip) said.set(node, shape.tip);
    chart.append(node);
  }
  // One listener for all shapes: a matrix has thousands.
  chart.addEventListener("mousemove", (e) => {
    const lines = said.get(e.target);
    lines ? tip.show(e, lines[0], lines.slice(1)) : tip.hide();
  });
  chart.addEventListener("mouseleave", tip.hide);
  const box = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": d.title }, chart);
  showCulprit(box, d);
  return el("div", { class: d.size[0] > 1000 ? "drawing wide" : "drawing" }, heading ? el("h3", {}, d.title) : null, box,
    d.legend.length > 0 && legend(d.legend), d.notes.length > 0 && el("p", { class: "quiet" }, d.notes.join(" ")),
    numbers && numbers.rows.length > 0 && foldedLater("as a table", () => table(d.title, numbers.rows, numbers.columns)));
}

// Where a picture is wider than the page, what stands out in it is in view first.
function showCulprit(box, d) {
  const culprit = d.shapes.find((s) => s.fill === "high" && s.is !== "text");
  if (!culprit) return;
  let isShown = false;
  redrawn(() => {
    if (isShown || !box.clientWidth) return;
    isShown = true;
    box.scrollLeft = ((culprit.x + (culprit.w ?? 0) / 2) / d.size[0]) * box.scrollWidth - box.clientWidth / 2;
  });
}

const SHAPES = {
  rect: (s) => svg("rect", { x: s.x, y: s.y, width: s.w, height: s.h, style: { fill: `var(--${s.fill})` } }),
  dot: (s) => svg("circle", { cx: s.x, cy: s.y, r: s.r, class: "seen", style: { fill: `var(--${s.fill})` } }),
  path: (s) => svg("polyline", { points: s.points, fill: "none", "stroke-width": s.width, "stroke-dasharray": s.dashed ? "4 3" : null, style: { stroke: `var(--${s.stroke})` } }),
  area: (s) => svg("polygon", { points: s.points, style: { fill: `var(--${s.fill})` } }),
  text: (s) => svg("text", { x: s.x, y: s.y, class: `axis${s.anchor ? ` ${s.anchor}` : ""}${s.small ? " small" : ""}`, style: { fill: `var(--${s.fill})` } }, glued(s.text)),
};

/** @param {DrawnShape} s */
function shapeOf(s) {
  const shape = SHAPES[s.is](s);
  if (known(s.opacity)) shape.setAttribute("opacity", s.opacity);
  return shape;
}

// Those of these pictures that there are, next to each other where they fit.
function drawings(...list) {
  const there = list.filter(Boolean);
  return there.length ? el("div", { class: "drawings" }, there.map((d) => drawn(d))) : null;
}
