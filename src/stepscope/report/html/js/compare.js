// The page of a comparison, from top to bottom.

function compareHeader(report) {
  const runs = SIDES.map((side) => report[side].runs.length);
  const facts = [report.basis === "bench" ? "benchmarks" : `${report.basis} steps`, runs[0] === 1 && runs[1] === 1 ? "one run each" : `${runs[0]} and ${runs[1]} runs`];
  return [
    el("div", {},
      el("h1", {}, `${report.a.name} against ${report.b.name}`),
      el("p", { class: "quiet" }, facts.join(" · "), " · changes are B minus A, intervals 95 % · made offline, needs no network")),
    el("button", { id: "theme", type: "button", "aria-pressed": String(isDark()), on: { click: changeTheme } }, "light / dark"),
  ];
}

function compareCards(report) {
  const step = report.step_ms;
  const steps = SIDES.map((side) => report[side].runs.reduce((sum, run) => sum + run.num_steps, 0));
  const list = [
    ["verdict", "Verdict", report.verdict, known(step.p_value) ? `p ${step.p_value < 0.001 ? "< 0.001" : `= ${step.p_value.toFixed(3)}`}` : ""],
    ["step", "Step", `${timeText(step.a)} → ${timeText(step.b)}`, `${report.basis} steps, mean of the middle half`],
    ["overlap", "Change", signedPct(step.change_pct), `${signedTime(step.change)} per step`],
    ["mfu", "95 % interval", known(step.low_pct) ? `${signedPct(step.low_pct)} to ${signedPct(step.high_pct)}` : "none",
      known(step.low) ? `${signedTime(step.low)} to ${signedTime(step.high)}` : "too few steps"],
    ["overhead", "Smallest detectable", pctText(step.smallest_detectable_pct), `with ${steps[0]} and ${steps[1]} steps`],
  ];
  return el("section", { class: "cards", "aria-label": "The comparison in short" },
    list.map(([id, title, value, why]) => el("div", { class: `card ${id} ${id === "verdict" || id === "overlap" ? TONE[report.verdict] ?? "" : ""}` },
      el("div", { class: "quiet" }, title), el("div", { class: "value" }, value), el("div", { class: "quiet" }, why))));
}

function findingChanges(report) {
  if (!report.findings.length) return panel("findings", "Findings that came and went", el("p", {}, "Neither side has any."));
  const ranks = (f) => (f.ranks.length ? `rank ${f.ranks.join(", ")}` : NONE);
  return panel("findings", "Findings that came and went", sortedTable("findings", report.findings, [
    { title: "became", get: (f) => f.what, tone: (v) => TONE[v] },
    { title: "finding", get: (f) => f.id },
    nameColumn("title", (f) => f.title),
    { title: "ranks", get: ranks },
    timeColumn("A: to save", "a_saving_ms", { show: (v, f) => (f.a_runs ? timeText(v) : NONE) }),
    timeColumn("B: to save", "b_saving_ms", { show: (v, f) => (f.b_runs ? timeText(v) : NONE) }),
    { title: "runs of A, B", get: (f) => `${f.a_runs}, ${f.b_runs}`, number: true },
  ]));
}

const changeLines = (r) => [
  `${timeText(r.a)} → ${timeText(r.b)}`, known(r.low) ? `95 % interval ${signedTime(r.low)} to ${signedTime(r.high)}` : "no interval: too few steps",
];

function budgetChange(report) {
  if (!report.budget.length) return null;
  const rows = [...report.budget].sort((p, q) => Math.abs(q.change) - Math.abs(p.change));
  const total = rows.reduce((sum, r) => sum + r.change, 0);
  return panel("budget", "Where the difference went", stackedBudgets(report),
    el("p", { class: "quiet" }, `Per step, mean over ranks, as in each report; all parts together: ${signedTime(total)}. Green is less, red more: strong where it is more than chance among so many parts, pale where only its own interval leaves out zero.`),
    intervalChart(rows.map((r) => ({ ...r, name: words(r.part), tone: TONE[r.what], lines: changeLines(r) })), signedTime,
      "Change of each part of the step; the table below holds its numbers"),
    foldedLater("as a table", () => plainTable(["part", "A", "B", "change", "95 % interval", "verdict"],
      rows.map((r) => [words(r.part), timeText(r.a), timeText(r.b), signedTime(r.change), intervalText(r), r.what]))));
}

// Lines of the code that differ, where owners were recorded: what took longer first.
function codeChange(report) {
  if (!report.code.length) return null;
  const rows = report.code.map((r) => ({ ...r, place: `${r.file}:${r.line}` }));
  const slower = rows.filter((r) => r.change > 0).length;
  return panel("code", "Lines of code that changed",
    el("p", { class: "quiet" }, `The longer of a line's own time on the host and on the device, per step: ${slower} of ${rows.length} got slower. ${rows.some((r) => r.reason) ? "One run on a side: changes have no interval." : ""}`),
    sortedTable("code", rows, [
      { title: "line", get: (r) => r.place },
      { title: "source", get: (r) => r.source ?? r.function, name: true },
      timeColumn("A", "a"), timeColumn("B", "b"), changeColumn(),
      { title: "95 % interval", get: (r) => r.low, show: (_, r) => intervalText(r), number: true },
      { title: "verdict", get: (r) => r.what, tone: (v) => TONE[v], show: (v) => v },
    ], { filter: (r) => `${r.place} ${r.source ?? ""} ${r.module ?? ""}` }));
}

// A change by its sign: red where B takes longer, green where it takes less; pale where that may be chance.
const changeColumn = () => ({
  title: "change", get: (r) => r.change, show: (_, r) => signedTime(r.change), number: true,
  tone: (_, r) => `change-${r.change > 0 ? "high" : "low"}${TONE[r.what] ? "" : " unsure"}`,
});

const intervalText = (r) => (known(r.low) ? `${signedTime(r.low)} to ${signedTime(r.high)}` : "none");

function waterfallChange(report) {
  const rows = report.waterfall.filter((r) => r.a_pct_of_peak || r.b_pct_of_peak);
  if (!rows.length) return null;
  return panel("waterfall", "Where the FLOPs go, in % of peak", plainTable(["loss", "A", "B", "change", "A per step", "B per step"],
    rows.map((r) => [words(r.loss), pctText(r.a_pct_of_peak), pctText(r.b_pct_of_peak), signedPct(r.change_pct_of_peak),
      timeText(r.a_ms), timeText(r.b_ms)])));
}

function calledRows(report, id, title) {
  const rows = report[id];
  const box = panel(id, title);
  if (!rows.length) {
    box.append(el("p", {}, "Nothing differs."));
    return box;
  }
  const change = { ...changeColumn(), get: (r) => Math.abs(r.change), bar: true };
  box.append(
    el("p", { class: "quiet" }, `Per step, mean over ranks; ${report[`${id}_changed`]} differ at all. What is marked differs by more than chance among so many.`),
    sortedTable(id, rows, [
      kernelColumn("name"),
      timeColumn("A", "a"), timeColumn("B", "b"), change,
      { title: "95 % interval", get: (r) => r.low, show: (_, r) => intervalText(r), number: true },
      countColumn("A calls", "a_count"), countColumn("B calls", "b_count"),
      timeColumn("A each", "a_each_ms"), timeColumn("B each", "b_each_ms"),
      { title: "verdict", get: (r) => r.what, show: (v) => (v === "no difference found" ? "" : v), tone: (v) => TONE[v] },
    ], { filter: (r) => r.name, sort: 3 }));
  return box;
}

function metricRows(report) {
  const number = (v) => (known(v) ? v.toLocaleString("en", { maximumSignificantDigits: 5 }) : NONE);
  const moved = (r) => (r.significant ? 1e9 : 0) + Math.abs(r.change_pct ?? 0);
  const rows = [...report.metrics].sort((p, q) => moved(q) - moved(p));
  const interval = (r) => (known(r.low_pct) ? `${signedPct(r.low_pct)} to ${signedPct(r.high_pct)}` : r.reason || NONE);
  return panel("metrics", "Every number of the reports",
    el("p", { class: "quiet" }, "Those that differ by more than chance first. One value on a side has no interval: several runs per side give every number one."),
    sortedTable("metrics", rows, [
      nameColumn("name", (r) => r.name),
      { title: "A", get: (r) => r.a, show: number, number: true }, { title: "B", get: (r) => r.b, show: number, number: true },
      { title: "change", get: (r) => (known(r.change_pct) ? Math.abs(r.change_pct) : null), show: (_, r) => signedPct(r.change_pct), number: true },
      { title: "95 % interval", get: (r) => r.low_pct, show: (_, r) => interval(r), number: true },
      { title: "verdict", get: (r) => (r.significant ? "differs" : ""), tone: () => "medium" },
    ], { filter: (r) => r.name }));
}

function seriesChart(report) {
  const rows = report.series.map((s) => ({
    name: s.name, change: s.step_ms.change_pct, low: s.step_ms.low_pct, high: s.step_ms.high_pct, tone: TONE[s.verdict],
    lines: [`${timeText(s.step_ms.a)} → ${timeText(s.step_ms.b)}`, s.verdict, ...s.config_changes],
  }));
  const table = plainTable(["series", "A", "B", "change", "95 % interval", "p", "runs", "steps", "verdict"], report.series.map((s) => [
    s.name, timeText(s.step_ms.a), timeText(s.step_ms.b), signedPct(s.step_ms.change_pct),
    known(s.step_ms.low_pct) ? `${signedPct(s.step_ms.low_pct)} to ${signedPct(s.step_ms.high_pct)}` : "none",
    known(s.step_ms.p_value) ? s.step_ms.p_value.toFixed(3) : NONE, s.num_runs.join(", "), s.num_steps.join(", "), s.verdict]));
  const only = [["A", report.only_a], ["B", report.only_b]].filter(([, names]) => names.length);
  return panel("findings", "Series of both sides", rows.length ? intervalChart(rows, signedPct, "Change of each series") : null, table,
    only.map(([side, names]) => el("p", { class: "quiet" }, `Only in ${side}: ${names.join(", ")}`)));
}

function gateRows(report) {
  if (!report.gates.length) return null;
  return panel("gates", "Gates", el("ul", {}, report.gates.map((g) => el("li", {},
    el("b", { class: g.holds ? "low" : "high" }, g.holds ? "✓ holds " : "✗ fails "), `${g.fail_on}: ${g.said}`))));
}

function noteRows(report) {
  if (!report.notes.length) return null;
  return panel("trust", "How far to trust this", el("ul", {}, report.notes.map((note) => el("li", {}, note))));
}

const COMPARE_SHORT = {
  budget: "Step", findings: "Findings", timelines: "Timelines", code: "Code", waterfall: "FLOPs", metrics: "All numbers", trust: "Trust",
};

async function showComparison() {
  const root = byId("report");
  const { report } = await unpack(byId("data").textContent);
  byId("top").append(...compareHeader(report));
  /** @type {HTMLElement} */ (document.querySelector("a.skip")).textContent = "Skip to what changed";
  const dots = report.basis === "bench" ? null : stepDots(report);
  const parts = report.basis === "bench"
    ? [seriesChart(report), gateRows(report), metricRows(report), noteRows(report)]
    : [compareCards(report), gateRows(report), budgetChange(report), findingChanges(report), lanesPanel(report), codeChange(report),
      dots && panel("steps", "Step times", dots), waterfallChange(report), calledRows(report, "kernels", "Kernels"), calledRows(report, "operators", "Operators"),
      metricRows(report), noteRows(report)];
  root.append(...parts.filter(Boolean));
  listSections(root, COMPARE_SHORT);
  root.setAttribute("aria-busy", "false");
  document.documentElement.dataset.readyMs = performance.now().toFixed(0);
}

showComparison().catch((error) => {
  byId("report").append(el("p", { role: "alert", class: "warning" }, `This page could not be drawn: ${error.message}`));
  throw error;
});
