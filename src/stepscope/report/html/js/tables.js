// Tables that sort by a click on a column and filter as one types.

const SHOWN_ROWS = 12;

// `columns` is one list: { title, key, unit } and, where wanted, `bar` (drawn behind the number), `some` (dropped unless
// any is above 0), `link`, `show` and `below` (functions of the row; the last is written below the value). A column that nothing is known of is dropped; without `key`
// the row is the value. `sort` is the key of the column that the table is sorted by, largest first.
/** @type {(name: string, rows: any[], columns: Column[], options?: TableOptions) => HTMLElement} */
function table(name, rows, columns, { sort = null, most = SHOWN_ROWS, filter = true } = {}) {
  const shown = columns.filter((c) => rows.some((r) => (c.some ? cellOf(c, r) > 0 : known(cellOf(c, r)))));
  const isText = (c) => TEXT_UNITS.includes(c.unit ?? "text");
  const first = shown.findIndex((c) => c.key === sort);
  const usual = { column: first < 0 ? null : first, down: true, text: "" };
  const own = { ...usual, all: false, ...keptTable(name, shown.length) };
  const body = el("tbody");
  const more = el("button", { type: "button", class: "more", on: { click: () => { own.all = !own.all; draw(); } } });
  const heads = shown.map((column, i) => el("th", { scope: "col", class: isText(column) ? null : "number" },
    el("button", { type: "button", on: { click: () => { own.down = own.column === i ? !own.down : true; own.column = i; keep({ push: true }); draw(); } } }, column.title || column.unit)));
  const ranges = shown.map((c) => (c.bar ? barRange(rows.map((r) => cellOf(c, r)).filter(known)) : null));
  const words = (r) => shown.filter((c) => isText(c) || c.unit === "rank").map((c) => `${c.unit === "rank" ? "rank " : ""}${cellOf(c, r) ?? ""} ${c.below?.(r) ?? ""}`).join(" ").toLowerCase();
  function chosen() {
    const text = own.text.toLowerCase();
    const list = text ? rows.filter((r) => words(r).includes(text)) : [...rows];
    if (own.column === null) return list;
    const column = shown[own.column], get = (r) => cellOf(column, r);
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true }));
    return list.sort((a, b) => (known(get(a)) ? (known(get(b)) ? order(get(a), get(b)) * (own.down ? -1 : 1) : -1) : 1));
  }
  function draw() {
    const list = chosen();
    body.replaceChildren(...(own.all ? list : list.slice(0, most)).map((row) => el("tr", {}, shown.map((c, i) => cell(c, row, ranges[i], isText(c))))));
    more.hidden = list.length <= most;
    more.textContent = own.all ? "show fewer" : `show all ${list.length}`;
    heads.forEach((head, i) => head.setAttribute("aria-sort", own.column !== i ? "none" : own.down ? "descending" : "ascending"));
  }
  const typed = (e) => { own.text = e.target.value; keep(); draw(); };
  const keep = (how) => keepTable(name, own, usual.column, how);
  const field = el("input", { type: "search", value: own.text, on: { input: typed } });
  const restore = () => { Object.assign(own, usual, keptTable(name, shown.length)); field.value = own.text; draw(); };
  draw();
  return el("div", { class: "sorted", on: { restore } }, filter && rows.length > 12 && shown.some(isText) ? el("label", { class: "filter" }, "filter ", field) : null,
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name },
      el("table", {}, el("thead", {}, el("tr", {}, heads)), body)), more);
}

const cellOf = (column, row) => (typeof column.key === "function" ? column.key(row) : column.key === undefined ? row : row[column.key]);

// Bars begin at 0, but where all values are alike: there they begin below the smallest, and differences show.
function barRange(values) {
  const low = Math.min(...values), high = Math.max(...values, 0);
  return [values.length > 1 && low > 0.7 * high ? low - (high - low) / 2 : 0, high];
}

const TONE = { slower: "high", appeared: "high", new: "high", grew: "high", fail: "high", faster: "low", vanished: "low", resolved: "low", "mostly resolved": "low", pass: "low", passed: "low", failed: "high" };

/** @type {(column: Column, row: any, range: number[] | null, isText: boolean) => HTMLElement} */
function cell(column, row, range, isText) {
  const value = cellOf(column, row);
  const text = column.show ? column.show(row, value) : unitText(value, column.unit ?? "text");
  const width = range && known(value) && range[1] > range[0] ? `${Math.max(0, (100 * (value - range[0])) / (range[1] - range[0]))}%` : null;
  // A longer time is worse; a larger share may be better.
  const tone = column.unit === "verdict" ? TONE[value] : column.unit === "signed_ms" && value ? `change-${value > 0 ? "high" : "low"}` : null;
  const isLong = isText && text.length > 40, below = column.below?.(row);
  return el("td", { class: !isText ? "number" : column.unit === "code" ? "name code" : isLong || column.below ? "name" : null, title: isLong ? value : null },
    width && el("span", { class: "cellbar", style: { width } }),
    column.link?.(row) ? el("a", { href: column.link(row) }, text) : el("span", { class: tone }, text),
    below && el("div", { class: "below", title: below }, below));
}

// The order and the filter of a table in the address: `kernels=-3 nccl` is by its fourth column, largest first.
function keptTable(name, columns) {
  const found = state.get(tableKey(name))?.match(/^([-+])(\d*) ?(.*)$/);
  return found ? { ...(found[2] && Number(found[2]) < columns ? { column: Number(found[2]), down: found[1] === "-" } : {}), text: found[3] } : {};
}
function keepTable(name, own, usual, how) {
  const changed = own.text || own.column !== usual || !own.down;
  state.set({ [tableKey(name)]: changed ? `${own.down ? "-" : "+"}${own.column ?? ""} ${own.text}`.trim() : null }, how);
}
// Tables come and go, so that none is listed anywhere: those that are there are told.
state.onChange(() => document.querySelectorAll(".sorted").forEach((box) => box.dispatchEvent(new Event("restore"))));
const tableKey = (name) => name.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-");


// Rows of a table that evidence is about: filtered where the filter leaves any.
document.addEventListener("show-rows", ({ detail: [id, text] }) => {
  jump(id);
  const section = document.getElementById(id);
  const input = /** @type {HTMLInputElement | null | undefined} */ (section?.querySelector(".filter input"));
  if (!section || !input) return;
  const filter = (value) => { input.value = value; input.dispatchEvent(new Event("input")); };
  filter(text);
  if (!section.querySelector("tbody tr")) filter("");
});
