// Tables that sort by a click on a column and filter as one types.

const SHOWN_ROWS = 12;

function plainTable(titles, rows) {
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, titles.map((t, i) => el("th", { scope: "col", class: i ? "number" : null }, t)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { class: i ? "number" : null }, cell)))))));
}

/** @type {(name: string, rows: any[], columns: TableColumn[], options?: TableOptions) => HTMLElement} */
function sortedTable(name, rows, columns, { filter = null, sort = null, most = SHOWN_ROWS } = {}) {
  const usual = { column: sort, down: true, text: "" };
  const own = { ...usual, all: false, ...keptTable(name, columns.length) };
  const body = el("tbody");
  const more = el("button", { type: "button", class: "more", on: { click: () => { own.all = !own.all; draw(); } } });
  const heads = columns.map((column, i) => el("th", { scope: "col", class: column.number ? "number" : null },
    el("button", { type: "button", on: { click: () => { own.down = own.column === i ? !own.down : true; own.column = i; keep({ push: true }); draw(); } } }, column.title)));
  const largest = columns.map((c) => (c.bar ? Math.max(...rows.map((r) => c.get(r) ?? 0), 0) : 0));
  function chosen() {
    const text = own.text.toLowerCase();
    const list = text && filter ? rows.filter((r) => filter(r).toLowerCase().includes(text)) : [...rows];
    if (own.column === null) return list;
    const { get } = columns[own.column];
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "").localeCompare(String(b ?? "")));
    return list.sort((a, b) => (known(get(a)) ? (known(get(b)) ? order(get(a), get(b)) * (own.down ? -1 : 1) : -1) : 1));
  }
  function draw() {
    const list = chosen();
    const shown = own.all ? list : list.slice(0, most);
    body.replaceChildren(...shown.map((row) => el("tr", {}, columns.map((c, i) => cell(c, row, largest[i])))));
    more.hidden = list.length <= most;
    more.textContent = own.all ? "show fewer" : `show all ${list.length}`;
    heads.forEach((head, i) => head.setAttribute("aria-sort", own.column !== i ? "none" : own.down ? "descending" : "ascending"));
  }
  const typed = (e) => { own.text = e.target.value; keep(); draw(); };
  const keep = (how) => keepTable(name, own, sort, how);
  const field = el("input", { type: "search", value: own.text, on: { input: typed } }), input = filter && el("label", { class: "filter" }, "filter ", field);
  const restore = () => { Object.assign(own, usual, keptTable(name, columns.length)); field.value = own.text; draw(); };
  draw();
  return el("div", { class: "sorted", on: { restore } }, rows.length > 6 ? input : null,
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name },
      el("table", {}, el("thead", {}, el("tr", {}, heads)), body)), more);
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

/** @type {(column: TableColumn, row: any, most: number) => HTMLElement} */
function cell(column, row, most) {
  const value = column.get(row);
  const text = column.show ? column.show(value, row) : known(value) ? String(value) : NONE;
  const width = column.bar && known(value) && most > 0 ? `${(100 * value) / most}%` : null;
  return el("td", { class: column.number ? "number" : column.name ? "name" : null, title: column.name && String(value).length > 40 ? value : null },
    width && el("span", { class: "cellbar", style: { width } }),
    column.link ? el("a", { href: column.link(row) }, text) : el("span", { class: column.tone ? column.tone(value, row) : null }, text));
}

/** @type {(title: string, key: string, more?: Partial<TableColumn>) => TableColumn} */
const timeColumn = (title, key, more) => ({ title, get: (r) => r[key], show: timeText, number: true, ...more });
const textColumn = (title, key, show = words) => ({ title, get: (r) => r[key], show: (v) => (known(v) ? show(v) : NONE) });
const rateColumn = (title, key) => ({ title, get: (r) => r[key], show: (v) => (known(v) ? digits(v) : NONE), number: true });
const countColumn = (title, key) => ({ title, get: (r) => r[key], show: countText, number: true });
const nameColumn = (title, get) => ({ title, get, name: true });
const kernelColumn = (title) => ({ ...nameColumn(title, (r) => r.name), show: shortName });

function ranks(report) {
  const times = ["window_ms", "compute_ms", "comm_ms", "exposed_comm_ms", "wait_ms", "transfer_ms", "memory_ms", "idle_ms"];
  const always = ["window_ms", "compute_ms", "idle_ms"];
  const used = times.filter((key) => report.ranks.some((r) => (always.includes(key) ? known(r[key]) : r[key] > 0)));
  if (!used.length) return null;
  const clock = (r) => (known(r.clock_offset_us) ? `${digits(r.clock_offset_us)} ± ${digits(r.clock_uncertainty_us)} µs` : NONE);
  return panel("ranks", "Ranks", el("p", { class: "quiet" }, `Sums over each rank's whole window${report.run.num_steps ? `: ${numberOf(report.run.num_steps, "step")} and what lies around ${report.run.num_steps === 1 ? "it" : "them"}` : ""}.`),
    sortedTable("ranks", report.ranks, [
      { title: "rank", get: (r) => r.rank, number: true },
      ...(report.ranks.some((r) => r.host) ? [textColumn("host", "host", String)] : []),
      ...used.map((key) => timeColumn(titleOf(key.replace("memory_ms", "copies_ms")), key, { bar: key !== "window_ms" })),
      ...[{ title: "overlap", key: "overlap_pct", show: (v) => pctText(v) }, { title: "clock", key: "clock_offset_us", show: (_, r) => clock(r) }]
        .filter(({ key }) => report.ranks.some((r) => known(r[key])))
        .map(({ title, key, show }) => ({ title, get: (r) => r[key], show, number: true })),
    ], { filter: (r) => `rank ${r.rank} ${r.host ?? ""}` }));
}

// Sums of the window as numbers of one step; unchanged where no step was recorded, and `per` says which it is.
function perStep(report, rows, keys) {
  const steps = report.run.num_steps;
  if (!steps) return { per: "over the window", rows };
  const share = (row) => Object.fromEntries(keys.filter((key) => known(row[key])).map((key) => [key, row[key] / steps]));
  return { per: "per step", rows: rows.map((row) => ({ ...row, ...share(row) })) };
}

function collectives(report) {
  if (!report.collectives.length) return null;
  const { per, rows } = perStep(report, report.collectives, ["bytes", "count", "wait_ms", "transfer_ms", "exposed_ms"]);
  const total = (r) => (known(r.wait_ms) ? r.wait_ms + r.transfer_ms : null);
  return panel("collectives", "Collectives",
    el("p", { class: "quiet" }, `Per rank and ${per}. Waiting lasts until the last rank arrives; transfer is the rest.`.replace("and over", "over")),
    sortedTable("collectives", rows, [
      textColumn("collective", "op"),
      { title: "group", get: (r) => r.group, show: (v, r) => (known(r.group_size) ? `${v} (${r.group_size})` : v) },
      { title: "bytes", get: (r) => r.bytes, show: bytesText, number: true },
      countColumn("count", "count"),
      { title: "total", get: total, show: timeText, number: true, bar: true },
      timeColumn("transfer", "transfer_ms"),
      timeColumn("wait", "wait_ms", { bar: true }),
      timeColumn("exposed", "exposed_ms"),
      rateColumn("bus GB/s", "busbw_gb_per_s"),
      ...(rows.some((r) => known(r.live_busbw_gb_per_s)) ? [rateColumn("all steps GB/s", "live_busbw_gb_per_s")] : []),
      { title: "last to arrive", get: (r) => r.late_rank, show: (v) => (known(v) ? `rank ${v}` : NONE) },
    ], { filter: (r) => `${r.op} ${r.group}`, sort: 4 }));
}

function kernels(report) {
  if (!report.kernels.length) return null;
  const measured = report.kernels.some((r) => r.measured_share > 0);
  const inSteps = report.kernels.some((r) => r.step_ms > 0);
  const rows = inSteps ? report.kernels.map((r) => ({ ...r, count: r.count_per_step, total_ms: r.step_ms })) : report.kernels;
  const share = (title, field) => ({ title, get: (r) => r[field], show: (v) => (known(v) ? pctText(v) : NONE), number: true });
  return panel("kernels", "Kernels",
    el("p", { class: "quiet" }, `${report.run.num_ranks > 1 ? "Mean over ranks, " : ""}${inSteps ? "per step: what recorded steps launched" : "over the whole window"}.`.replace(/^./, (c) => c.toUpperCase())),
    sortedTable("kernels", rows, [
      kernelColumn("kernel"),
      textColumn("family", "family"),
      countColumn("count", "count"),
      timeColumn("total", "total_ms", { bar: true }),
      { title: "share", get: (r) => r.share, show: (v) => (known(v) ? pctText(100 * v) : NONE), number: true },
      timeColumn("mean", "mean_ms"),
      textColumn("precision", "precision"),
      rateColumn("TFLOP/s", "tflops"),
      rateColumn("GB/s", "gb_per_s"),
      textColumn("bound", "bound"),
      ...(measured ? [textColumn("by", "bound_from"), share("occupancy", "occupancy_pct"), share("DRAM", "dram_pct"),
        share("tensor pipe", "tensor_pct"), textColumn("waits for", "stall")] : []),
    ], { filter: (r) => `${r.name} ${r.family}`, sort: 3 }));
}

function operators(report) {
  if (!report.operators.length) return null;
  const device = report.operators.some((r) => r.device_self_ms > 0);
  const { per, rows } = perStep(report, report.operators, ["calls", "host_self_ms", "host_total_ms", "device_self_ms", "device_total_ms"]);
  const means = report.run.num_ranks > 1 ? "Mean over ranks, " : "";
  return panel("operators", "Operators", el("p", { class: "quiet" }, `${means}${per}.`.replace(/^./, (c) => c.toUpperCase())), sortedTable("operators", rows, [
    nameColumn("operator", (r) => r.name),
    nameColumn("shapes", (r) => r.shapes),
    countColumn("calls", "calls"),
    timeColumn("host self", "host_self_ms", { bar: true }),
    timeColumn("host total", "host_total_ms"),
    ...(device ? [timeColumn("device self", "device_self_ms", { bar: true }), timeColumn("device total", "device_total_ms")] : []),
  ], { filter: (r) => `${r.name} ${r.shapes ?? ""}`, sort: device ? 5 : 3 }));
}

function idle(report) {
  const rows = report.idle.filter((r) => r.ms_per_step > 0);
  if (!rows.length) return null;
  const columns = [textColumn("cause", "cause"), timeColumn("per step", "ms_per_step", { bar: true })];
  return panel("idle", "Why the device was idle", sortedTable("idle causes", rows, columns, { sort: 1 }));
}

function criticalPath(report) {
  if (!report.critical_path.length) return null;
  return panel("critical-path", "Critical path",
    el("p", { class: "quiet" }, `What a step's length consists of, followed back from its end${report.run.num_ranks > 1 ? " over all ranks" : ""}.`),
    sortedTable("critical path", report.critical_path, [
      { title: "rank", get: (r) => r.rank, show: (v) => (v < 0 ? NONE : String(v)), number: true },
      textColumn("what", "what"),
      kernelColumn("name"),
      timeColumn("per step", "ms_per_step", { bar: true }),
      { title: "share", get: (r) => r.pct, show: (v) => pctText(v), number: true },
    ], { filter: (r) => `${r.name} rank ${r.rank}`, sort: 3, most: 8 }));
}

function checks(report) {
  if (!report.checks.length) return null;
  return panel("checks", "Checks", checkTable(report.checks.map((check) => ({ check }))),
    (report.guides ?? []).map((guide) => foldedLater(`${guide.title}: ${guide.why}`, () => checkTable(guide.items))));
}

const STATUS = { fail: ["✗ fail", "high"], pass: ["✓ pass", "low"] };

// items: { check, remedy }
function checkTable(items) {
  return sortedTable("checks", items, [
    { title: "status", get: (r) => r.check.status, show: (v) => (STATUS[v] ?? ["– not measured"])[0], tone: (v) => STATUS[v]?.[1] },
    { title: "check", get: (r) => r.check.id, show: words },
    { title: "value", get: (r) => r.check.value, show: (v) => (known(v) ? digits(v) : NONE), number: true },
    { title: "good", get: (r) => r.check.good },
    { title: "bad", get: (r) => r.check.bad },
    nameColumn("why", (r) => r.check.reason),
    ...(items.some((r) => r.remedy) ? [nameColumn("try", (r) => r.remedy)] : []),
  ]);
}

// Rows of a table that evidence is about: filtered where the filter leaves any.
document.addEventListener("show-rows", ({ detail: [id, text] }) => {
  const section = document.getElementById(id);
  const input = /** @type {HTMLInputElement | null | undefined} */ (section?.querySelector(".filter input"));
  if (section && input) {
    const filter = (value) => { input.value = value; input.dispatchEvent(new Event("input")); };
    filter(text);
    if (!section.querySelector("tbody tr")) filter("");
  }
  jump(id);
});
