// The top of the page: what the run is, the five cards, what to fix first, and the step's budget.

function header(report) {
  const run = report.run;
  const world = known(run.world_size) && run.world_size !== run.num_ranks ? `${run.num_ranks} of ${run.world_size}` : run.num_ranks;
  const facts = [
    run.strategy, `${world} rank${run.num_ranks === 1 ? "" : "s"}`, run.device, `${run.num_steps} recorded step${run.num_steps === 1 ? "" : "s"}`,
    run.backend, known(run.torch) ? `torch ${run.torch}` : null,
  ];
  return [
    el("div", {},
      el("h1", {}, run.name),
      el("p", { class: "quiet" }, facts.filter(known).join(" · "), " · made offline, needs no network")),
    el("button", { id: "theme", type: "button", "aria-pressed": String(isDark()), on: { click: changeTheme } }, "light / dark"),
  ];
}

const isDark = () => {
  const said = document.documentElement.dataset.theme;
  return said ? said === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

function changeTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  document.getElementById("theme").setAttribute("aria-pressed", String(isDark()));
  redraws.forEach((draw) => draw());
}

function cards(report) {
  const { step, efficiency } = report;
  const known_ms = step.unprofiled_ms ?? step.profiled_ms;
  const overlap = report.ranks.map((r) => r.overlap_pct).filter(known);
  const mean = overlap.reduce((a, b) => a + b, 0) / overlap.length;
  const overhead = step.profiler_overhead_pct;
  const list = [
    ["verdict", "Verdict", words(report.verdict ?? "unknown"), verdictWhy(report)],
    ["step", "Step", timeText(known_ms), stepWhy(step)],
    ["mfu", "MFU", known(efficiency.mfu) ? pctText(100 * efficiency.mfu) : NONE,
      known(efficiency.mfu) ? `of ${digits(efficiency.peak_tflops)} TFLOP/s ${efficiency.precision ?? ""}` : "FLOPs or peak unknown"],
    ["overlap", "Communication hidden", overlap.length ? pctText(mean) : NONE,
      overlap.length ? "of its time lies under compute" : "no communication recorded"],
    ["overhead", "Profiler overhead", known(overhead) ? pctText(overhead) : NONE,
      known(overhead) ? "longer than an unprofiled step" : "unprofiled step unknown"],
  ];
  return el("section", { class: "cards", "aria-label": "The run in short" },
    list.map(([id, title, value, why]) => el("div", { class: `card ${id}` },
      el("div", { class: "quiet" }, title), el("div", { class: "value" }, value), el("div", { class: "quiet" }, why))));
}

function verdictWhy(report) {
  const top = [...report.step.budget].sort((a, b) => b.pct - a.pct)[0];
  return top ? `${words(top.part)} takes ${pctText(top.pct, 0)} of the step` : "no step was recorded";
}

function stepWhy(step) {
  if (known(step.unprofiled_ms)) return `without the profiler; ${timeText(step.profiled_ms)} with it`;
  return known(step.profiled_ms) ? "as profiled" : "no step was recorded";
}

function findings(report) {
  const list = report.findings;
  const step_ms = report.step.unprofiled_ms ?? report.step.profiled_ms;
  const box = panel("findings", "What to fix first");
  if (!list.length) {
    box.append(el("p", {}, "Nothing that would save 2 % of the step or more was found."));
    return box;
  }
  box.append(el("div", { class: "findings" }, list.map((f, i) => finding(f, i === 0))));
  const all = report.findings_combined.at(-1);
  if (list.length > 1 && all) {
    const left = known(step_ms) ? `, from ${timeText(step_ms)} to ${timeText(step_ms - all.saving_ms_per_step)} per step` : "";
    box.append(el("p", { class: "quiet" }, `All ${list.length} together save ${timeText(all.saving_ms_per_step)}${left}.`));
  }
  return box;
}

const severity = (f) => (f.saving_pct >= 15 ? "high" : f.saving_pct >= 5 ? "medium" : f.saving_pct > 0 ? "low" : "note");

function finding(f, open) {
  const level = severity(f);
  const saves = f.saving_ms_per_step > 0 ? `−${timeText(f.saving_ms_per_step)}/step (${pctText(f.saving_pct)})` : "no saving by itself";
  return el("details", { class: "finding", open },
    el("summary", {},
      el("span", { class: `level ${level}` }, level), el("span", { class: "what" }, f.title), el("span", { class: "saves" }, saves)),
    el("div", { class: "body" },
      el("p", {}, f.cause),
      el("p", {}, el("b", {}, "Try: "), f.remedy),
      f.evidence.length > 0 && el("table", { class: "evidence" }, el("caption", {}, "Evidence"), el("tbody", {}, f.evidence.map(evidenceRow))),
      el("p", {}, f.ranks.map((rank) => placeButton(`rank ${rank} in the timeline`, rank))),
      el("p", { class: "quiet" },
        `saves between ${timeText(f.saving_low_ms)} and ${timeText(f.saving_high_ms)} per step · confidence ${pctText(100 * f.confidence, 0)} · rule ${f.id}`)));
}

function evidenceRow(e) {
  const rank = /^rank (\d+)/.exec(e.where || "");
  const value = typeof e.value === "number" ? e.value.toLocaleString("en", { maximumFractionDigits: 3 }) : String(e.value);
  return el("tr", {},
    el("th", { scope: "row" }, e.what), el("td", { class: "number" }, `${value} ${e.unit || ""}`.trim()),
    el("td", {}, rank ? placeButton(e.where, Number(rank[1])) : e.where));
}

// Evidence leads to the place it is about.
function placeButton(text, rank) {
  return el("button", { type: "button", class: "chip", on: { click: () => document.dispatchEvent(new CustomEvent("show-rank", { detail: rank })) } }, text);
}

function budget(report) {
  const parts = report.step.budget.filter((p) => p.pct > 0);
  if (!parts.length) return null;
  const bar = el("div", { class: "budget", role: "img", "aria-label": parts.map((p) => `${words(p.part)} ${pctText(p.pct)}`).join(", ") },
    parts.map((p) => el("span", {
      class: "part", style: { "flex-grow": String(p.pct), background: `var(--${partColour(p.part)})` },
      on: { mousemove: (e) => tip.show(e, words(p.part), [`${timeText(p.ms_per_step)} per step`, pctText(p.pct)]), mouseleave: tip.hide },
    }, p.pct > 7 ? el("span", {}, words(p.part)) : null)));
  const rows = [...parts].sort((a, b) => b.pct - a.pct).map((p) => el("li", {},
    el("span", { class: "swatch", style: { background: `var(--${partColour(p.part)})` } }),
    el("span", {}, words(p.part)), el("span", { class: "number" }, timeText(p.ms_per_step)), el("span", { class: "number quiet" }, pctText(p.pct))));
  return panel("budget", "Where the step goes",
    el("p", { class: "quiet" }, "Mean over ranks; every instant of the step is exactly one part."), bar, el("ul", { class: "parts" }, rows));
}

const partColour = (part) => (["forward", "backward", "optimizer", "other_compute"].includes(part) ? part.replace("other_compute", "other") : GROUP_OF_PART[part]);
