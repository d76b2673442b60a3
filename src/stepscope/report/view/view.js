// The page around the report: tabs, tables with filter, order, units and download, the timeline handed to Perfetto.

const PAGE = 200;
/** @type {(id: string) => any} */
const part = byId;
const address = document.body.dataset.perfetto ?? "", perfetto = new URL(address).origin;
const say = (text) => (part("said").textContent = text);
const failed = (error) => say(error.message);
const shownTable = { names: /** @type {string[]} */ ([]), table: "", offset: 0, sort: "", down: false, filter: "", last: 0, chosen: 0 };

// Tabs: a click, the arrow keys on the list, or a number. -------------------------------------------------------------

/** @type {HTMLElement[]} */
const tabs = Array.from(document.querySelectorAll("[role=tab]:not([hidden])"));
function choose(tab, { keep = true } = {}) {
  for (const other of tabs) {
    const on = other === tab;
    other.setAttribute("aria-selected", String(on));
    other.tabIndex = on ? 0 : -1;
    part(String(other.getAttribute("aria-controls"))).hidden = !on;
  }
  if (keep) state.set({ tab: tab.id === "tab-report" ? null : tab.id.replace("tab-", "") }, { push: true });
  if (tab.id === "tab-tables" && !shownTable.names.length) listTables().catch(failed);
}
tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (e) => {
    if (e.key !== "ArrowLeft" && e.key !== "ArrowRight") return;
    const next = tabs[(i + 1) % tabs.length];
    next.focus();
    choose(next);
  });
});

async function answer(path) {
  const found = await fetch(path);
  if (!found.ok) throw new Error((await found.text()).trim() || found.statusText);
  return found;
}

// Tables: whatever a cell holds, it is text. ---------------------------------------------------------------------------

async function listTables() {
  const { tables } = await (await answer("tables.json")).json();
  shownTable.names = tables.map(({ name }) => name);
  part("table").replaceChildren(...tables.map(({ name, meaning }) => Object.assign(new Option(name, name), { title: meaning })));
  await showChosen();
}

// The table as the address says.
async function showChosen() {
  const name = state.get("table") ?? "";
  const sort = state.get("sort") ?? "";
  Object.assign(shownTable, {
    table: shownTable.names.includes(name) ? name : shownTable.names[0] ?? "", sort: sort.replace(/^-/, ""), down: sort.startsWith("-"),
    filter: state.get("filter") ?? "", offset: Math.max(0, Math.floor((state.number("row") ?? 1) - 1)),
  });
  part("table").value = shownTable.table;
  part("filter").value = shownTable.filter;
  await draw();
}

function show(changed) {
  Object.assign(shownTable, { offset: 0 }, changed);
  const { table, sort, down, filter, offset } = shownTable;
  state.set({ table, sort: sort && `${down ? "-" : ""}${sort}`, filter, row: offset ? String(offset + 1) : null }, { push: !("filter" in changed) || "table" in changed });
  draw().catch(failed);
}

const query = ({ offset, limit }) => new URLSearchParams({
  ...(shownTable.sort ? { sort: shownTable.sort, down: shownTable.down ? "1" : "0" } : {}), ...(shownTable.filter ? { filter: shownTable.filter } : {}),
  ...(limit ? { offset: String(offset), limit: String(limit) } : {}),
}).toString();
const tablePath = (ending, search) => `tables/${encodeURIComponent(shownTable.table)}.${ending}${search ? `?${search}` : ""}`;

let asked = 0;
async function draw() {
  if (!shownTable.table) return;
  const mine = ++asked;
  const page = await (await answer(tablePath("json", query({ offset: shownTable.offset, limit: PAGE })))).json();
  if (mine !== asked) return; // something else was asked for since
  const since = page.first_start_ns === null ? null : BigInt(page.first_start_ns);
  const head = el("thead", {}, el("tr", {}, page.columns.map(columnHead)));
  const isNumber = page.columns.map((column, i) => column.unit !== "" || page.rows.some((row) => typeof row[i] === "number"));
  const body = el("tbody", {}, page.rows.map((row) => el("tr", {}, row.map((value, i) => tableCell(page.columns[i], value, since, isNumber[i])))));
  part("grid").replaceChildren(head, body);
  const last = Math.min(page.offset + PAGE, page.chosen);
  Object.assign(shownTable, { last, chosen: page.chosen });
  const of = page.chosen === page.total ? `${countText(page.total)}` : `${countText(page.chosen)} (of ${countText(page.total)} in the table)`;
  part("rows").textContent = page.chosen ? `rows ${countText(page.offset + 1)} to ${countText(last)} of ${of}` : page.total ? "no row holds the filter" : "no rows";
  part("back").disabled = part("first").disabled = page.offset === 0;
  part("on").disabled = last >= page.chosen;
  part("csv").setAttribute("href", tablePath("csv", query({ offset: 0, limit: 0 })));
  /** @type {HTMLElement} */ (document.querySelector(".scroll")).scrollTop = 0;
}

function columnHead(column) {
  const on = shownTable.sort === column.name;
  const click = () => show({ sort: on && !shownTable.down ? "" : column.name, down: !on });
  return el("th", { scope: "col", "aria-sort": on ? (shownTable.down ? "descending" : "ascending") : "none", title: column.unit ? `${column.meaning} (${column.unit})` : column.meaning },
    el("button", { type: "button", on: { click } }, column.name.replace(/_(ns|bytes)$/, "")));
}

// A time in the unit that suits it, a moment since the first one of the table, bytes as people write them.
function tableCell(column, value, since, number) {
  return el("td", { class: number ? "number" : null, title: number && /^(ns|bytes)/.test(column.unit) ? `${value} ${column.unit}` : String(value ?? "").length > 60 ? value : null },
    cellText(column, value, since));
}

function cellText(column, value, since) {
  if (value === null) return NONE;
  if (column.is_instant && since !== null) return `${written(Number(BigInt(value) - since) / 1e6, 3)} ms`;
  if (column.unit.startsWith("ns")) return timeText(Number(value) / 1e6);
  if (column.unit.startsWith("bytes")) return bytesText(Number(value));
  if (typeof value === "number" && !Number.isInteger(value)) return Math.abs(value) < 0.1 ? String(Number(value.toPrecision(3))) : digits(value, 4);
  return String(value);
}

let typing = 0;
part("filter").addEventListener("input", (e) => {
  clearTimeout(typing);
  typing = setTimeout(() => show({ filter: e.target.value.trim() }), 250);
});
part("table").addEventListener("change", (e) => show({ table: e.target.value, sort: "", down: false, filter: (part("filter").value = "") }));
const toFirst = () => show({ offset: 0 }), toBack = () => show({ offset: Math.max(0, shownTable.offset - PAGE) });
const toNext = () => shownTable.last < shownTable.chosen && show({ offset: shownTable.offset + PAGE });
part("first").addEventListener("click", toFirst);
part("back").addEventListener("click", toBack);
part("on").addEventListener("click", toNext);

// The report in its frame: what is chosen there is in this page's address too. -------------------------------------------

const frame = /** @type {HTMLIFrameElement} */ (document.getElementById("view-report"));
const reportAddress = () => `report.html${state.get("report") ? `#${state.get("report")}` : ""}`;
frame.src = reportAddress();
addEventListener("inner-state", (e) => state.set({ report: /** @type {CustomEvent<string>} */ (e).detail || null }));
state.onChange(() => {
  choose(tabs.find((tab) => tab.id === `tab-${state.get("tab")}`) ?? tabs[0], { keep: false });
  if (shownTable.names.length) showChosen().catch(failed);
  const isShown = (frame.contentWindow?.location.hash.slice(1) ?? "") === (state.get("report") ?? "");
  if (!isShown) frame.contentWindow?.location.replace(reportAddress());
});
choose(tabs.find((tab) => tab.id === `tab-${state.get("tab")}`) ?? tabs[0], { keep: false });

// Keys. -------------------------------------------------------------------------------------------------------------------

/** @type {[string, string, () => void][]} */
const KEYS = [
  ["1", "the report", () => choose(tabs[0])],
  ["2", "the tables", () => tabs[1] && choose(tabs[1])],
  ["/", "filter the table", () => { if (tabs[1]) { choose(tabs[1]); part("filter").focus(); } }],
  ["n", "next rows", toNext],
  ["b", "rows before", toBack],
  ["p", "timeline in Perfetto", () => part("open-perfetto").hidden || part("open-perfetto").click()],
  ["?", "this list", () => (part("keys").open ? part("keys").close() : part("keys").showModal())],
];
part("keys-list").append(...KEYS.flatMap(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)]));
part("show-keys").addEventListener("click", () => part("keys").showModal());
part("close-keys").addEventListener("click", () => part("keys").close());
addEventListener("keydown", (e) => {
  const typed = e.target instanceof HTMLInputElement || e.target instanceof HTMLSelectElement;
  if (typed || e.ctrlKey || e.metaKey || e.altKey) return;
  const found = KEYS.find(([key]) => key === e.key);
  if (!found) return;
  e.preventDefault();
  found[2]();
});

// The timeline: opened by the reader's click, handed over once the other page says it listens. -----------------------------

part("open-perfetto").addEventListener("click", async () => {
  const other = window.open(address);
  if (!other) return say(`The browser did not open ${perfetto}: allow this page to open windows.`);
  try {
    const ready = listening(other);
    say("Making the timeline …");
    const buffer = await (await answer("timeline")).arrayBuffer();
    say(`Waiting for ${perfetto} …`);
    await ready;
    const title = document.querySelector("h1")?.textContent;
    other.postMessage({ perfetto: { buffer, title, keepApiOpen: false } }, perfetto);
    return say(`The timeline is open in ${perfetto}.`);
  } catch (error) {
    return failed(error);
  }
});
function listening(other) {
  return new Promise((resolve, reject) => {
    const asking = setInterval(() => {
      if (other.closed) end(reject, new Error("The window was closed."));
      else other.postMessage("PING", perfetto);
    }, 200);
    const hear = (e) => e.origin === perfetto && e.source === other && e.data === "PONG" && end(resolve);
    const late = setTimeout(() => end(reject, new Error(`${perfetto} did not answer: is this machine offline?`)), 60000);
    function end(how, value) {
      clearInterval(asking);
      clearTimeout(late);
      window.removeEventListener("message", hear);
      how(value);
    }
    window.addEventListener("message", hear);
  });
}
