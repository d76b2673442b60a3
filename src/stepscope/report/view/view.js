"use strict";
(() => {
  const PAGE = 200;
  /** @type {(id: string) => any} */
  const byId = (id) => document.getElementById(id);
  const address = document.body.dataset.perfetto ?? "", perfetto = new URL(address).origin;
  const said = (text) => (byId("said").textContent = text);
  /** @type {{ table: string | null, offset: number, total: number }} */
  const state = { table: null, offset: 0, total: 0 };

  // Tabs: a click, or the arrow keys on the list.
  /** @type {HTMLElement[]} */
  const tabs = Array.from(document.querySelectorAll("[role=tab]"));
  function choose(tab) {
    for (const other of tabs) {
      const on = other === tab;
      other.setAttribute("aria-selected", String(on));
      other.tabIndex = on ? 0 : -1;
      byId(String(other.getAttribute("aria-controls"))).hidden = !on;
    }
    if (tab.id === "tab-tables" && state.table === null) listTables().catch(failed);
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
  const failed = (error) => said(error.message);

  // Tables: whatever a cell holds, it is text.
  async function listTables() {
    state.table = "";
    const { tables } = await (await answer("tables.json")).json();
    byId("table").replaceChildren(...tables.map(({ name, meaning }) => Object.assign(new Option(name, name), { title: meaning })));
    if (tables.length) await showTable(tables[0].name, 0);
  }
  async function showTable(name, offset) {
    const page = await (await answer(`tables/${encodeURIComponent(name)}.json?offset=${offset}&limit=${PAGE}`)).json();
    Object.assign(state, { table: name, offset: page.offset, total: page.total });
    const head = document.createElement("thead"), body = document.createElement("tbody");
    const titles = row(head, "th", page.columns.map((c) => c.name));
    page.columns.forEach((c, i) => (titles.cells[i].title = c.unit ? `${c.meaning} (${c.unit})` : c.meaning));
    page.rows.forEach((values) => row(body, "td", values));
    byId("grid").replaceChildren(head, body);
    const last = Math.min(page.offset + PAGE, page.total);
    const count = (n) => n.toLocaleString("en");
    byId("rows").textContent = page.total ? `rows ${count(page.offset + 1)} to ${count(last)} of ${count(page.total)}` : "no rows";
    byId("back").disabled = byId("first").disabled = page.offset === 0;
    byId("on").disabled = last >= page.total;
    /** @type {HTMLElement} */ (document.querySelector(".scroll")).scrollTop = 0;
  }
  function row(into, tag, values) {
    const line = into.appendChild(document.createElement("tr"));
    for (const value of values) {
      const cell = line.appendChild(document.createElement(tag));
      cell.textContent = value === null ? "–" : String(value);
      if (typeof value === "number") cell.className = "number";
      if (tag === "th") cell.setAttribute("scope", "col");
    }
    return line;
  }
  byId("table").addEventListener("change", (e) => showTable(e.target.value, 0).catch(failed));
  byId("first").addEventListener("click", () => showTable(state.table, 0).catch(failed));
  byId("back").addEventListener("click", () => showTable(state.table, Math.max(0, state.offset - PAGE)).catch(failed));
  byId("on").addEventListener("click", () => showTable(state.table, state.offset + PAGE).catch(failed));

  // The timeline: opened by the reader's click, handed over once the other page says it listens.
  byId("open-perfetto").addEventListener("click", async () => {
    const other = window.open(address);
    if (!other) return said(`The browser did not open ${perfetto}: allow this page to open windows.`);
    try {
      const ready = listening(other);
      said("Making the timeline …");
      const buffer = await (await answer("timeline")).arrayBuffer();
      said(`Waiting for ${perfetto} …`);
      await ready;
      const title = document.querySelector("h1")?.textContent;
      other.postMessage({ perfetto: { buffer, title, keepApiOpen: false } }, perfetto);
      said(`The timeline is open in ${perfetto}.`);
    } catch (error) {
      failed(error);
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
})();
