// The first tab: what to fix first with its place in the timeline, the other fixes, and where the step goes.

function header({ report, grid }) {
  const run = report.run, steps = grid?.steps ?? [];
  const numbers = steps.length > 1 ? `steps ${steps[0]}–${steps[steps.length - 1]}` : `step ${steps[0]}`;
  const world = known(run.world_size) && run.world_size !== run.num_ranks ? `${run.num_ranks} of ${run.world_size}` : run.num_ranks;
  const facts = [
    devicesText(run, world), run.strategy === "single" ? null : strategyText(run.strategy), `${numberOf(run.num_steps, "recorded step")}${steps.length ? ` (${numbers} of the job)` : ""}`, run.backend,
    known(run.torch) ? `torch ${run.torch}` : null,
  ];
  return [
    el("div", {}, el("h1", {}, run.name), el("p", { class: "quiet" }, facts.filter(known).join(" · "))),
    el("button", { id: "theme", type: "button", "aria-pressed": String(isDark()), on: { click: changeTheme } }, "light / dark"),
  ];
}

// "1 × NVIDIA H200", "4 ranks on 1 × NVIDIA H200": a device that ranks share is what limits them.
function devicesText(run, world) {
  const device = run.device ?? "device unknown";
  if (known(run.num_devices) && run.num_devices < run.num_ranks) return `${world} ranks on ${run.num_devices} × ${device}`;
  return device === "CPU" ? `${world} rank${run.num_ranks === 1 ? "" : "s"} · CPU` : `${world} × ${device}`;
}

// What shares are of: without a recorded step the whole window stands for it.
const wholeOf = (report) => (report.run.num_steps ? "step" : "window");
// The fix that the sentence on top names. Findings that save nothing on their own are notes, and come last.
const firstFix = (report) => report.findings.find((f) => f.leads) ?? (report.findings[0]?.saving_alone_ms > 0 ? report.findings[0] : null);
const fixNumber = (report, f) => report.findings.indexOf(f) + 1;
function together(report) {
  const count = report.findings.filter((f) => f.saving_alone_ms > 0).length, all = report.findings_combined.at(-1);
  return count < 2 || all?.saving_ms_per_step > 0.99 * stepOf(report) ? null : count === 2 ? "both together" : `all ${count} together`;
}
const stepOf = (report) => report.step.unprofiled_ms ?? report.step.profiled_ms;

function cards(report) {
  const { mfu, peak_tflops, peak_precision } = report.efficiency;
  const first = firstFix(report), all = report.findings_combined.at(-1);
  const limit = first?.saving_pct < 10 ? "" : ` · limited by: ${words(report.verdict.replace(/-bound$/, ""))}`; // less than that decides no verdict
  const saving = (ms) => `${stepTexts(stepOf(report) || ms, ms)[2]} (${pctText((100 * ms) / (stepOf(report) || 1), 0)})`;
  const list = [
    [wholeOf(report) === "step" ? "Step" : "Window", timeText(stepOf(report)), stepWhy(report)],
    known(mfu) ? ["MFU", pctText(100 * mfu, mfu < 0.001 ? 3 : 1), `of ${digits(peak_tflops)} TFLOP/s ${peak_precision ? `dense ${peak_precision}` : ""}${limit}`]
      : ["Limited by", words(report.verdict.replace(/-bound$/, "")), report.verdict_reason],
    ["Saving", first ? `${atMost(first)}${saving(first.saving_alone_ms)}` : "none found", first
      ? [`fix ${fixNumber(report, first)} alone, ${first.likely}`, together(report) && all && `${together(report)} ${saving(all.saving_ms_per_step)}`].filter(Boolean).join("; ") : "no fix worth reporting"],
  ];
  return el("section", { class: "cards", "aria-label": "The run in short" }, list.map(([title, value, why]) =>
    el("div", { class: "card plain" }, el("span", { class: "quiet" }, title), el("span", { class: "value" }, glued(value)), el("span", { class: "quiet" }, glued(why)))));
}

function stepWhy({ step, steadiness }) {
  const rate = known(step.tokens_per_s) ? `${countText(Math.round(step.tokens_per_s))} tokens/s` : known(step.samples_per_s) ? `${countText(Math.round(step.samples_per_s))} samples/s` : null;
  const few = steadiness?.num_steps < 100, longest = (few ? steadiness?.max_ms : steadiness?.p99_ms) ?? 0;
  // The slowest step is one of those that a time is of: of the log, or of the recorded steps.
  const slowest = (source, ms) => (steadiness?.source === source && longest >= ms ? `, ${few ? "slowest" : "p99"} ${timeText(longest)}${steadiness.warm_up_steps ? " after warm-up" : ""}` : "");
  const recorded = slowest("recorded steps", step.profiled_ms);
  const times = known(step.unprofiled_ms) ? [`without the profiler${step.unprofiled_ms > step.profiled_ms ? ", other steps" : ""}${slowest("step logs", step.unprofiled_ms)}`, `recorded steps ${timeText(step.profiled_ms)}${recorded}`]
    : known(step.profiled_ms) ? [`while profiled${recorded}`, "unprofiled time unknown"] : ["no step was recorded"];
  return [rate, ...times].filter(known).join(" · ");
}

// Clocks that are too uncertain to order arrivals change what may be concluded.
const MAX_DOUBT_SHARE = 0.02;
function clockBanner(report) {
  const worst = Math.max(0, ...report.ranks.map((r) => r.clock_uncertainty_us).filter(known)) / 1000;
  if (worst <= Math.max(1, MAX_DOUBT_SHARE * (stepOf(report) ?? 0))) return null;
  return el("p", { class: "banner", role: "note" }, el("b", {}, `The clocks of the ranks agree only within ±${timeText(worst)}. `), "Smaller differences in arrival are not significant.");
}

// What stands below the sentence on every rendering: what limits the step where no fix is large, and what to know about it.
const opening = (report) => [...report.reasons.map((line) => el("p", {}, glued(line))), ...report.caveats.map((line) => el("p", { class: "banner", role: "note" }, glued(line)))];

// The first fix with its timeline, then the others, folded.
function findings(report, grid, place) {
  const first = firstFix(report), others = report.findings.filter((f) => f !== first);
  const all = report.findings_combined.at(-1), step = stepOf(report), sum = together(report);
  const boxes = others.map((f) => el("details", { class: "finding" }, el("summary", {}, findingTitle(f, fixNumber(report, f), report)), findingBody(f, grid, report)));
  const more = boxes.length ? panel("more-findings", first ? "Other fixes" : "Notes", keptOpen(boxes, others.map((f) => fixNumber(report, f))),
    sum && all && known(step) ? el("p", { class: "quiet" }, `${sum}: ${stepTexts(step, all.saving_ms_per_step).slice(0, 2).join(" → ")} per ${wholeOf(report)}.`.replace(/^./, (c) => c.toUpperCase())) : null) : null;
  if (!first) {
    const clear = !report.not_examined.length && report.verdict !== "unclear";
    return [panel("findings", "What to fix", el("p", {}, `No fix worth reporting was found${clear ? "" : " in what could be examined"}.`), ...(report.not_judged ?? []).map((line) => el("p", { class: "quiet" }, line)),
      clear ? null : el("p", {}, chip("what was not examined", () => jump("not-examined")))), place, more];
  }
  return [
    el("section", { id: "findings", class: "panel first-fix", "aria-labelledby": "findings-title" }, el("h2", { id: "findings-title" }, findingTitle(first, fixNumber(report, first), report)), findingBody(first, grid, report)),
    place, more,
  ];
}

function findingTitle(f, number, report) {
  const saves = f.saving_alone_ms > 0 ? `saves ${atMost(f)}${stepTexts(stepOf(report) || f.saving_alone_ms, f.saving_alone_ms)[2]} per ${wholeOf(report)} (${pctText(f.saving_pct, 0)})` : "no saving claimed";
  return [el("span", { class: "what" }, f.saving_alone_ms > 0 ? `Fix ${number}: ${f.title}` : f.title), el("span", { class: `saves ${f.saving_alone_ms > 0 ? "low" : "note"}` }, `${saves} `, f.likely && el("span", { class: "quiet" }, f.likely))];
}

// Those are open that the address names by their numbers: `open=2.3`.
function keptOpen(boxes, numbers) {
  const restore = () => { const wanted = state.numbers("open") ?? []; boxes.forEach((box, i) => (box.open = wanted.includes(numbers[i]))); };
  const keep = () => state.set({ open: numbers.filter((_, i) => boxes[i].open).join(".") || null }, { push: true });
  restore();
  boxes.forEach((box) => box.addEventListener("toggle", keep));
  state.onChange(restore);
  return boxes;
}

function findingBody(f, grid, report) {
  const before = fixNumber(report, f) - 1, fixes = before > 1 ? `fixes 1–${before}` : "fix 1";
  const after = Math.abs(f.saving_ms_per_step - f.saving_alone_ms) > 0.05 * f.saving_alone_ms ? `${timeText(f.saving_ms_per_step)} more after ${fixes}` : null;
  return el("div", { class: "body" },
    el("p", { class: "remedy" }, el("b", {}, "→ "), f.remedy),
    el("p", {}, sentenceOf(f.cause)),
    (f.where || []).length > 0 && el("p", { class: "where" }, el("b", {}, "Where (share of its cost, including the lines it calls): "), placeText(f.where)),
    f.evidence.length > 0 && el("table", { class: "evidence" }, el("caption", {}, "Evidence"), el("tbody", {}, f.evidence.map(evidenceRow))),
    el("p", { class: "places" }, el("b", {}, "See: "), placesOf(f, grid).map(([text, run]) => chip(text, run)), report.docs?.[f.id] && el("a", { href: `#docs-${f.id}`, on: { click: (e) => showDocs(e, f.id) } }, `about ${f.id}`)),
    after && el("p", { class: "quiet" }, after));
}

const atMost = (f) => (f.at_most ? "at most " : "");
const sentenceOf = (text) => (/^\S*\./.test(text) ? text : text.replace(/^./, (c) => c.toUpperCase())); // file names keep their case

// Lines and modules that hold a finding's cost: "wild.py:113 (92 %), module layers.3 (4 %)".
function placeText(where) {
  const name = (w) => (w.file === null ? `module ${w.module}` : `${w.after ? "after " : ""}${w.file}:${w.line}${w.module ? ` in module ${w.module}` : ""}`);
  const lines = where.filter((w) => w.file !== null), modules = where.filter((w) => w.file === null);
  const list = (rows) => rows.map((w) => `${name(w)} (${pctText(100 * w.share, 0)})`).join(", ");
  return [list(lines), list(modules)].filter(Boolean).join("; ");
}

function evidenceRow(e) {
  const rank = /^rank (\d+)/.exec(e.where || "");
  const value = typeof e.value !== "number" ? String(e.value) : Number.isInteger(e.value) ? written(e.value, 0) : digits(e.value);
  return el("tr", {},
    el("th", { scope: "row" }, e.what), el("td", { class: "number" }, e.unit === "bytes" ? bytesText(e.value) : `${value} ${e.unit || ""}`.trim()),
    el("td", {}, rank ? chip(e.where, () => tell("show-rank", Number(rank[1]))) : e.where));
}

// The docs pages of the findings, in the page itself: it needs no network, and links of a file lead nowhere.
function docsPanel(report) {
  const pages = Object.entries(report.docs ?? {});
  return pages.length ? panel("docs", "About these findings", pages.map(([id, text]) =>
    el("details", { class: "finding", id: `docs-${id}` }, el("summary", {}, el("span", { class: "what" }, id)), el("div", { class: "body prose" }, prose(text))))) : null;
}

function showDocs(event, id) {
  event.preventDefault();
  const box = /** @type {HTMLDetailsElement | null} */ (document.getElementById(`docs-${id}`));
  if (box) box.open = true;
  jump(`docs-${id}`);
}

// Markdown as far as the docs use it: headings, paragraphs, lists, tables and indented code; links become their text.
function prose(text) {
  const blocks = [];
  for (const line of text.split("\n")) {
    const kind = line.startsWith("    ") ? "pre" : /^#+ /.test(line) ? "h" : line.startsWith("|") ? "table" : /^- /.test(line) ? "li" : line.trim() ? "p" : "";
    const last = blocks[blocks.length - 1];
    if (kind === "p" && last?.kind === "li") last.lines[last.lines.length - 1] += ` ${line.trim()}`;
    else if (last && kind && kind !== "h" && last.kind === kind) last.lines.push(line);
    else if (kind || last?.kind !== "") blocks.push({ kind, lines: [line] });
  }
  const plain = (line) => line.replace(/\[([^\]]+)\]\([^)]*\)/g, "$1").replace(/[`*]/g, "");
  const cells = (line) => line.split("|").slice(1, -1).map((cell) => plain(cell).trim());
  return blocks.filter((b) => b.kind && !/^# /.test(b.lines[0])).map(({ kind, lines }) => {
    if (kind === "pre") return el("pre", { tabindex: 0 }, lines.map((line) => line.slice(4)).join("\n"));
    if (kind === "h") return el("h3", {}, plain(lines[0].replace(/^#+ /, "")));
    if (kind === "li") return el("ul", {}, lines.map((line) => el("li", {}, plain(line.slice(2)))));
    if (kind === "table") {
      const [head, , ...rows] = lines.map(cells);
      return el("table", {}, el("thead", {}, el("tr", {}, head.map((cell) => el("th", { scope: "col" }, cell)))), el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))));
    }
    return el("p", {}, plain(lines.join(" ")));
  });
}
