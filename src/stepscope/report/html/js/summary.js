// The top of the page: what the run is, the cards, what to fix first, and the step's budget.

function header(report) {
  const run = report.run;
  const world = known(run.world_size) && run.world_size !== run.num_ranks ? `${run.num_ranks} of ${run.world_size}` : run.num_ranks;
  const facts = [
    run.strategy, `${world} rank${run.num_ranks === 1 ? "" : "s"}`, run.device, numberOf(run.num_steps, "recorded step"),
    run.backend, known(run.torch) ? `torch ${run.torch}` : null,
  ];
  return [
    el("div", {},
      el("h1", {}, run.name),
      el("p", { class: "quiet" }, facts.filter(known).join(" · "), " · made offline, needs no network")),
    el("button", { id: "theme", type: "button", "aria-pressed": String(isDark()), on: { click: changeTheme } }, "light / dark"),
  ];
}

// What a part of the step costs is fine below 5 %, and the first thing to look at above 15 %.
const toneOf = (pct) => (!known(pct) ? "unknown" : pct >= 15 ? "high" : pct >= 5 ? "medium" : "low");

function cards(report) {
  const share = (...names) => report.step.budget.filter((p) => names.includes(p.part)).reduce((sum, p) => sum + p.pct, 0);
  const wait = share("wait", "pipeline_bubble"), transfer = share("exposed_transfer");
  const host = share("launch_gap", "host_sync", "allocator", "host_stall", "data_loading");
  const some = report.step.budget.length > 0;
  /** @type {(string[] | null | false)[]} */
  const list = [
    ["verdict", "findings", "Verdict", words(report.verdict ?? "unknown"), report.verdict_reason],
    ["plain", "steps", "Step", timeText(report.step.unprofiled_ms ?? report.step.profiled_ms), stepWhy(report)],
    throughput(report),
    ["plain", "waterfall", "MFU", mfuText(report.efficiency.mfu), mfuWhy(report.efficiency)],
    report.run.num_ranks > 1 && some && [toneOf(wait), "heatmap", "Waiting for others", pctText(wait), waitWhy(report)],
    report.run.num_ranks > 1 && some && [toneOf(transfer), "collectives", "Exposed transfer", pctText(transfer), hiddenWhy(report)],
    some && [toneOf(host), "idle", "Host and input", pctText(host), hostWhy(report)],
    memoryCard(report),
  ];
  return el("section", { class: "cards", "aria-label": "The run in short" },
    list.filter((card) => card !== null && card !== false).map(([tone, place, title, value, why]) => el("a", { class: `card ${tone}`, href: `#${place}` },
      el("span", { class: "quiet" }, title), el("span", { class: "value" }, value), el("span", { class: "quiet" }, why))));
}

function throughput(report) {
  const { tokens_per_s: tokens, samples_per_s: samples } = report.step;
  const rate = known(tokens) ? tokens : samples;
  if (!known(rate)) return null;
  const other = known(tokens) && known(samples) ? `${countText(Math.round(samples))} samples/s, all ranks` : report.run.num_ranks > 1 ? "all ranks together" : "";
  return ["plain", "run-steps", known(tokens) ? "Tokens/s" : "Samples/s", countText(Math.round(rate)), other];
}

// Clocks that are known too badly to say who came last deserve more than a line at the end of the page.
const MAX_DOUBT_SHARE = 0.02;
function clockBanner(report) {
  const worst = Math.max(0, ...report.ranks.map((r) => r.clock_uncertainty_us).filter(known)) / 1000;
  const step = report.step.unprofiled_ms ?? report.step.profiled_ms;
  const gross = known(step) ? worst > Math.max(1, MAX_DOUBT_SHARE * step) : worst > 1;
  if (!gross) return null;
  return el("p", { class: "banner", role: "note" }, el("b", {}, `The clocks of the ranks agree only within ±${timeText(worst)}. `),
    "Differences below that (who arrived last, who waited) are not to be trusted.");
}

const mfuText = (mfu) => (known(mfu) ? pctText(100 * mfu) : NONE);

function mfuWhy({ mfu, peak_tflops, peak_precision }) {
  const of = peak_precision ? `dense ${peak_precision}` : "";
  return known(mfu) ? `of ${digits(peak_tflops)} TFLOP/s ${of}` : "FLOPs or peak unknown";
}

function stepWhy({ step, steadiness }) {
  if (known(step.unprofiled_ms)) return `${timeText(step.profiled_ms)} while profiled${step.profiler_overhead_pct > 0 ? `, +${pctText(step.profiler_overhead_pct)}` : ""}`;
  const spread = steadiness ? `, 99 % below ${timeText(steadiness.p99_ms)}` : "";
  return known(step.profiled_ms) ? `as profiled${spread}` : "no step was recorded";
}

function waitWhy(report) {
  const late = report.stragglers.map((s) => s.rank);
  return late.length ? `for rank ${late.slice(0, 3).join(", ")}${late.length > 3 ? ", …" : ""}` : report.run.num_ranks > 1 ? "mean over ranks" : "";
}

function hiddenWhy(report) {
  const overlap = report.ranks.map((r) => r.overlap_pct).filter(known);
  if (!overlap.length) return "no communication recorded";
  return `${pctText(overlap.reduce((a, b) => a + b, 0) / overlap.length, 0)} of communication is overlapped`;
}

function hostWhy(report) {
  const parts = ["data_loading", "host_stall", "host_sync", "launch_gap", "allocator"];
  const top = report.step.budget.filter((p) => parts.includes(p.part) && p.pct > 0).sort((a, b) => b.pct - a.pct)[0];
  return top ? `mostly ${words(top.part)}` : "never kept the device waiting";
}

function memoryCard(report) {
  const full = (report.memory?.ranks ?? []).filter((r) => known(r.peak_allocated_bytes)).sort((a, b) => b.peak_allocated_bytes - a.peak_allocated_bytes)[0];
  if (!full) return null;
  const pct = full.peak_pct_of_total;
  const of = known(full.device_total_bytes) ? `of ${bytesText(full.device_total_bytes)}, ` : "";
  return [known(pct) ? (pct >= 95 ? "high" : pct >= 85 ? "medium" : "low") : "plain", "memory", "Peak memory", bytesText(full.peak_allocated_bytes), `${of}rank ${full.rank}`];
}

function findings(report, grid) {
  const list = report.findings;
  const step_ms = report.step.unprofiled_ms ?? report.step.profiled_ms;
  const box = panel("findings", "What to fix first");
  if (!list.length) {
    const clear = !report.not_examined.length && report.verdict !== "unclear";
    box.append(el("p", {}, `Nothing that would save 2 % of the ${wholeOf(report)} or more was found${clear ? "" : " in what could be examined"}.`));
    box.append(...(report.not_judged ?? []).map((said) => el("p", { class: "quiet" }, said)), ...notExamined(report));
    return box;
  }
  const most = Math.max(...list.map((f) => f.saving_pct), 1);
  box.append(el("div", { class: "findings" }, keptOpen(list.map((f) => finding(f, most, grid, report)))));
  const all = report.findings_combined.at(-1);
  if (list.length > 1 && all) {
    const left = known(step_ms) ? `, from ${timeText(step_ms)} to ${timeText(step_ms - all.saving_ms_per_step)} per ${wholeOf(report)}` : "";
    box.append(el("p", { class: "quiet" }, `${list.length === 2 ? "Both" : `All ${list.length}`} together save ${timeText(all.saving_ms_per_step)}${left}.`));
  }
  box.append(...notExamined(report));
  return box;
}

// What nobody has looked for, one line for each thing that is lacking.
function notExamined(report) {
  const byNeed = new Map();
  for (const { rule, needs } of report.not_examined) byNeed.set(needs, [...(byNeed.get(needs) ?? []), rule]);
  return [...byNeed].map(([needs, rules]) => el("p", { class: "quiet" }, `Not examined: ${rules.join(", ")} (${needs}).`));
}

// What shares are of: without a recorded step the whole window stands for it.
const wholeOf = (report) => (report.run.num_steps ? "step" : "window");

const severity = (f) => (f.saving_pct >= 15 ? "high" : f.saving_pct >= 5 ? "medium" : f.saving_pct > 0 ? "low" : "note");

// The first is open, or those that the address names by their place: `open=1.3`, `open=0` for none.
function keptOpen(boxes) {
  const restore = () => {
    const wanted = state.numbers("open") ?? [1];
    boxes.forEach((box, i) => (box.open = wanted.includes(i + 1)));
  };
  const keep = () => {
    const open = boxes.flatMap((box, i) => (box.open ? [i + 1] : [])).join(".") || "0";
    state.set({ open: open === "1" ? null : open }, { push: true });
  };
  restore();
  boxes.forEach((box) => box.addEventListener("toggle", keep));
  state.onChange(restore);
  return boxes;
}

function finding(f, most, grid, report) {
  const whole = wholeOf(report), single = report.run.num_ranks === 1;
  const level = severity(f);
  const saves = f.saving_alone_ms > 0 ? `−${timeText(f.saving_alone_ms)}/${whole} (${pctText(f.saving_pct)})` : "no saving by itself";
  const onTop = Math.abs(f.saving_ms_per_step - f.saving_alone_ms) > 0.05 * f.saving_alone_ms ? ` · ${timeText(f.saving_ms_per_step)} on top of those above` : "";
  const gauge = el("span", { class: "gauge", "aria-hidden": "true" }, el("span", { class: `fill ${level}`, style: { width: `${(100 * Math.max(0, f.saving_pct)) / most}%` } }));
  const places = placesOf(f, grid);
  return el("details", { class: "finding" },
    el("summary", {},
      el("span", { class: `level ${level}` }, level), el("span", { class: "what" }, f.title), gauge, el("span", { class: "saves" }, saves)),
    el("div", { class: "body" },
      el("p", {}, f.cause),
      (f.where || []).length > 0 && el("p", { class: "where" }, el("b", {}, "Where: "), placeText(f.where)),
      el("p", {}, el("b", {}, "Try: "), f.remedy),
      f.evidence.length > 0 && el("table", { class: "evidence" }, el("caption", {}, "Evidence"), el("tbody", {}, f.evidence.map((e) => evidenceRow(e, single)))),
      places.length > 0 && el("p", { class: "places" }, el("b", {}, "See: "), places.map(([text, run]) => chip(text, run))),
      el("p", { class: "quiet" },
        `saves between ${timeText(f.saving_low_ms)} and ${timeText(f.saving_high_ms)} per ${whole}${onTop} · confidence ${pctText(100 * f.confidence, 0)} · rule ${f.id}`)));
}

// Lines and modules that hold a finding's cost: "wild.py:113 (92 %), module layers.3 (4 %)".
function placeText(where) {
  const name = (w) => (w.file === null
    ? `module ${w.module}`
    : `${w.after ? "after " : ""}${w.file}:${w.line}${w.module ? ` in ${w.module}` : ""}`);
  return where.map((w) => `${name(w)} (${pctText(100 * w.share, 0)})`).join(", ");
}

function evidenceRow(e, single) {
  const rank = /^rank (\d+)/.exec(e.where || "");
  const value = typeof e.value === "number" ? written(e.value, 3, 0) : String(e.value);
  return el("tr", {},
    el("th", { scope: "row" }, e.what), el("td", { class: "number" }, `${value} ${e.unit || ""}`.trim()),
    el("td", {}, rank ? chip(e.where, () => tell("show-rank", Number(rank[1]))) : single && e.where === "mean rank" ? "" : e.where));
}

function budget(report) {
  const parts = report.step.budget.filter((p) => p.pct > 0);
  if (!parts.length) return null;
  const bar = el("div", { class: "budget", role: "img", "aria-label": parts.map((p) => `${words(p.part)} ${pctText(p.pct)}`).join(", ") },
    parts.map((p) => el("span", {
      class: "part", style: { "flex-grow": String(p.pct), background: `var(--${partColour(p.part)})` },
      on: { mousemove: (e) => tip.show(e, words(p.part), [`${timeText(p.ms_per_step)} per ${wholeOf(report)}`, pctText(p.pct)]), mouseleave: tip.hide },
    }, hasRoom(words(p.part), p.pct) ? el("span", {}, words(p.part)) : null)));
  const rows = [...parts].sort((a, b) => b.pct - a.pct).map((p) => el("li", {},
    el("span", { class: "swatch", style: { background: `var(--${partColour(p.part)})` } }),
    el("span", {}, words(p.part)), el("span", { class: "number" }, timeText(p.ms_per_step)), el("span", { class: "number quiet" }, pctText(p.pct))));
  const whole = wholeOf(report);
  return panel("budget", `Where the ${whole} goes`,
    el("p", { class: "quiet" }, `${report.run.num_ranks > 1 ? "Mean over ranks; every" : "Every"} instant of the ${whole} is exactly one part.`), bar, el("ul", { class: "parts" }, rows));
}

// Whether a name fits into a part of the bar, which is about as wide as the page.
const hasRoom = (name, pct) => (pct / 100) * Math.min(innerWidth - 60, 1200) > 7 * name.length + 22;

const partColour = (part) => (["forward", "backward", "optimizer", "other_compute"].includes(part) ? part.replace("other_compute", "other") : GROUP_OF_PART[part]);
