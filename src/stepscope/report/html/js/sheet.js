// A page of cards, sections and notes, from what it is told to show.

function sheetHeader(sheet) {
  return [
    el("div", {}, el("h1", {}, sheet.title), el("p", { class: "quiet" }, [...sheet.facts, "self-contained file"].join(" · "))),
    el("button", { id: "theme", type: "button", "aria-pressed": String(isDark()), on: { click: changeTheme } }, "light / dark"),
  ];
}

function sheetCards(sheet) {
  if (!sheet.cards.length) return null;
  return el("section", { class: "cards", "aria-label": "In short" }, sheet.cards.map((card) =>
    el("div", { class: `card plain ${card.unit === "text" ? "exact" : ""} ${card.tone}` },
      el("div", { class: "quiet" }, card.title), el("div", { class: "value" }, glued(unitText(card.value, card.unit))), el("div", { class: "quiet" }, glued(card.why)))));
}

function sheetTable({ title, table: { columns, rows, links } }) {
  const first = columns.findIndex((column) => column.unit === "text");
  const linked = (row) => links[rows.indexOf(row)];
  return table(title, rows, links?.length ? columns.map((c, i) => (i === first ? { ...c, link: linked } : c)) : columns, { most: 40 });
}

function sheetSection(section) {
  const plain = section.chart && { ...section.chart, table: null };
  return panel(section.id, section.title, section.lines.map((line) => el("p", {}, glued(line))), plain && drawn(plain, { heading: false }), drawings(...section.more.map((d) => ({ ...d, table: null }))), section.table && sheetTable(section));
}

async function showSheet() {
  const root = byId("report");
  const { report: sheet } = await unpack(byId("data").textContent);
  byId("top").append(...sheetHeader(sheet));
  const notes = sheet.notes.length ? panel("notes", "Notes", el("ul", {}, sheet.notes.map((note) => el("li", {}, note)))) : null;
  const parts = [sheetCards(sheet), ...sheet.sections.map(sheetSection), notes].filter(Boolean);
  root.append(...parts);
  const skip = /** @type {HTMLAnchorElement} */ (document.querySelector("a.skip"));
  skip.textContent = "Skip to the numbers";
  skip.href = `#${sheet.sections[0]?.id ?? "report"}`;
  if (root.querySelectorAll("section.panel").length > 1) listSections(root);
  root.setAttribute("aria-busy", "false");
  document.documentElement.dataset.readyMs = performance.now().toFixed(0);
}

showSheet().catch((error) => {
  byId("report").append(el("p", { role: "alert", class: "warning" }, `This page could not be drawn: ${error.message}`));
  throw error;
});
