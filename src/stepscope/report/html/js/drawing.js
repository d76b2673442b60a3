// Pictures that come as shapes (report/pictures/drawing.py): a notebook shows the same ones.

/** @param {Drawing} d @param {{ heading?: boolean }} [options] */
function drawn(d, { heading = true } = {}) {
  const chart = picture(d.size[0], d.size[1], d.label, d.size[0] > 1000 ? MAX_GROWTH : 1.05);
  if (d.size[0] > 1000) chart.classList.add("wide");
  if (d.size[0] <= 360) chart.classList.add("small-picture");
  const said = new WeakMap();
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
  return el("div", { class: "drawing" }, heading ? el("h3", {}, d.title) : null,
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": d.title }, chart),
    d.legend.length > 0 && legend(d.legend), d.notes.length > 0 && el("p", { class: "quiet" }, d.notes.join(" ")),
    d.rows.length > 0 && foldedLater("as a table", () => tableOf(d)));
}

function tableOf(d) {
  const numeric = d.head.map((_, i) => d.rows.every((row) => /^[\d<−–-]|^$|^unknown$/.test(row[i] ?? "")));
  const columns = d.head.map((title, i) => ({ title, get: (r) => r[i], show: (v) => v || NONE, number: numeric[i], name: !numeric[i] && d.rows.some((r) => (r[i] ?? "").length > 60) }));
  return sortedTable(d.title, d.rows, columns.map((c, i) => (numeric[i] ? { ...c, get: (r) => amountOf(r[i]), show: (_, r) => r[i] || NONE } : c)));
}

// A number with its unit as one that sorts.
const UNITS = { ns: 1e-6, "µs": 1e-3, ms: 1, s: 1e3, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
function amountOf(text) {
  const found = /^([\d,.]+)\s*(\S*)/.exec(text ?? "");
  return found ? Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1) : null;
}

const SHAPES = {
  rect: (s) => svg("rect", { x: s.x, y: s.y, width: s.w, height: s.h, style: { fill: `var(--${s.fill})` } }),
  dot: (s) => svg("circle", { cx: s.x, cy: s.y, r: s.r, class: "seen", style: { fill: `var(--${s.fill})` } }),
  path: (s) => svg("polyline", { points: s.points, fill: "none", "stroke-width": s.width, "stroke-dasharray": s.dashed ? "4 3" : null, style: { stroke: `var(--${s.stroke})` } }),
  area: (s) => svg("polygon", { points: s.points, style: { fill: `var(--${s.fill})` } }),
  text: (s) => svg("text", { x: s.x, y: s.y, class: `axis${s.anchor ? ` ${s.anchor}` : ""}${s.small ? " small" : ""}`, style: { fill: `var(--${s.fill})` } }, s.text),
};

/** @param {DrawnShape} s */
function shapeOf(s) {
  const shape = SHAPES[s.is](s);
  if (known(s.opacity)) shape.setAttribute("opacity", s.opacity);
  return shape;
}

// A section with those of these pictures that there are, beside each other where they fit.
function pictureSection(id, title, drawings) {
  const there = drawings.filter(Boolean);
  if (!there.length) return null;
  const single = there.length === 1 && there[0].title === title;
  return panel(id, title, el("div", { class: there.length > 1 ? "drawings" : null }, there.map((d) => drawn(d, { heading: !single }))));
}
