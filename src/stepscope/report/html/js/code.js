// What lines and modules of the user's code take: as icicles, and as tables with what each line would save.

const OVER = [["lines", "source lines"], ["modules", "modules"]];

/** @param {any} report */
function code(report) {
  const trees = report.details.code_trees;
  if (!trees || !report.code.length) return null;
  const rows = new Map(report.code.map((row) => [`${row.file}:${row.line}`, row]));
  const used = usedMetrics(trees.lines);
  const most = [...used].sort(([a], [b]) => (trees.lines[b] ?? 0) - (trees.lines[a] ?? 0));
  const over = OVER.filter(([id]) => trees[id].children?.length), usual = { over: "lines", metric: most[0]?.[0] ?? "host" };
  const own = { ...usual };
  const pictures = Object.fromEntries(OVER.map(([id, text]) => [id, icicle({
    root: placed(trees[id]), label: `Time by ${text}; arrow keys move, Enter zooms in, Escape out`, metric: () => own.metric,
    lines: (item) => codeLines(item, trees[id], rows.get(item.node.name)), title: (item) => codeTitle(item, id),
  })]));
  const holder = el("div");
  const show = () => {
    holder.replaceChildren(pictures[own.over].box, pictures[own.over].said);
    key.replaceChildren(...iciclesLegend(own.metric));
    if (holder.isConnected) pictures[own.over].draw();
  };
  const key = el("div");
  const change = (name, key) => (value) => {
    own[name] = value;
    state.set({ [key]: value === usual[name] ? null : value }, { push: true });
    show();
  };
  const metrics = select("width by", used, change("metric", "by")), overs = select("over", over, change("over", "over"));
  function restore() {
    own.metric = oneOf(used, state.get("by")) ?? usual.metric;
    own.over = oneOf(over, state.get("over")) ?? usual.over;
    metrics.querySelector("select").value = own.metric;
    overs.querySelector("select").value = own.over;
    show();
  }
  redrawn(() => pictures[own.over].draw());
  const box = panel("code", "Time by source line and module",
    el("p", { class: "quiet" }, unownedText(report.unowned)),
    el("div", { class: "controls" }, overs, metrics,
      el("span", { class: "quiet" }, "click to zoom; or focus, arrow keys, Enter and Escape")),
    holder, key, el("h3", {}, "Lines"), ...linesTable(report),
    report.modules.length ? foldedLater("modules as a table", () => table("modules", report.modules, MODULE_COLUMNS)) : null);
  restore();
  state.onChange(restore);
  return box;
}

// Lines by what removing them saves. Training needs those that call the model, backward, the optimizer or the loader:
// they come last.
function linesTable(report) {
  const needed = new Set(report.details.training_lines ?? []), isNeeded = (row) => needed.has(`${row.file}:${row.line}`);
  const rows = report.code.some((r) => r.saving_ms > 0) ? [...report.code].sort((a, b) => Number(isNeeded(a)) - Number(isNeeded(b)) || (b.saving_ms ?? -1) - (a.saving_ms ?? -1)) : report.code;
  const note = rows.some(isNeeded) && rows.some((r) => !isNeeded(r)) ? "Lines that call the model, backward, the optimizer or the loader come last." : null;
  return [note && el("p", { class: "quiet" }, note), table("lines", rows, LINE_COLUMNS)];
}

// Without a device, communication is all there is of its time.
function usedMetrics(tree) {
  return ICICLE_METRICS.filter(([id]) => tree[id] > 0 && (id !== "device" || tree.device > (tree.comm ?? 0)));
}

function codeTitle(item, over) {
  const { name, label } = item.node;
  if (!item.parent) return over === "lines" ? "whole step" : "whole step, outside modules too";
  if (name === "others") return label;
  return over === "lines" ? `${name}  ${label}` : item.parent.parent ? label : name;
}

function codeLines(item, whole, row) {
  const { node } = item, said = [];
  for (const [id, text] of ICICLE_METRICS) {
    const back = node[`backward_${id}`];
    const share = whole[id] ? ` (${pctText((100 * node[id]) / whole[id])})` : "";
    if (node[id]) said.push(`${text} ${timeText(node[id])}${share}${back ? `, of it backward ${timeText(back)}` : ""}`);
  }
  if (row && known(row.saving_ms)) said.push(`saving if removed ${timeText(row.saving_ms)}`);
  if (row && row.source) said.push(row.source);
  return said;
}

function iciclesLegend(metric) {
  const [first, second] = ICICLE_COLOURS[metric];
  const swatch = (name, text) => el("li", {}, el("span", { class: "swatch plain", style: { background: `var(--${name})` } }), text);
  const texts = first === second ? [] : [swatch(first, "forward and the rest"), swatch(second, "backward, at the line that caused it")];
  return [el("ul", { class: "legend" }, texts)];
}

function unownedText(unowned) {
  const parts = [[unowned.host_pct, "host"], [unowned.device_pct, "device"]].filter(([v]) => known(v));
  const none = parts.map(([v, what]) => `${pctText(v)} of ${what}`).join(" and ");
  return `Per step, mean over ranks. Times include what was called from there.${none && ` Unattributed: ${none} time.`}`;
}

function placeOf(row) {
  return `${row.file}:${row.line}${row.line_to === row.line ? "" : row.line_to ? ` to ${row.line_to}` : " and after"}`;
}

const COST_COLUMNS = [
  { title: "saving if removed", key: "saving_ms", unit: "ms", bar: true, some: true }, { title: "of the step", key: "step_pct", unit: "pct" },
  { title: "device", key: "device_ms", unit: "ms", bar: true, some: true }, { title: "of it backward", key: "backward_device_ms", unit: "ms", some: true },
  { title: "host", key: "host_ms", unit: "ms", bar: true, some: true }, { title: "waiting", key: "blocked_ms", unit: "ms", some: true },
  { title: "comm", key: "comm_ms", unit: "ms", some: true }, { title: "exposed", key: "exposed_ms", unit: "ms", some: true }, { title: "MFU", key: "mfu", unit: "share" },
];
const LINE_COLUMNS = [{ title: "line", key: placeOf, below: (r) => r.source ?? "source not recorded" }, ...COST_COLUMNS, { title: "mostly in", key: "module" }];
const MODULE_COLUMNS = [{ title: "module", key: "module", unit: "name" }, ...COST_COLUMNS];
