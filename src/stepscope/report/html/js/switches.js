// What-if as switches: the step with any of the first fixes made, by replays that were made beforehand.

const PATH_COLOUR = { host: "host", kernel: "compute", collective: "transfer", copy: "copy", set: "other", launch: "input", other: "unknown" };

/** @param {any} report */
function switches(report) {
  const made = report.details.what_if;
  if (!made) return null;
  const findings = made.findings.map((i) => ({ ...report.findings[i], index: i }));
  const on = new Set();
  const said = el("p", { class: "switched", "aria-live": "polite" });
  const bars = el("div", {});
  const boxes = findings.map((f) => {
    const box = el("input", { type: "checkbox", on: { change: () => { box.checked ? on.add(f.index) : on.delete(f.index); keep(); draw(); } } });
    return el("label", { class: "switch" }, box, el("span", {}, f.title), el("span", { class: "quiet" }, `saves ${atMost(f)}${stepTexts(made.step_ms, f.saving_alone_ms)[2]} alone`));
  });
  const all = (checked) => () => {
    on.clear();
    if (checked) findings.forEach((f) => on.add(f.index));
    keep();
    check();
  };
  const keep = () => state.set({ fixes: [...on].sort((a, b) => a - b).join(".") || "none" }, { push: true });
  function check() {
    boxes.forEach((label, i) => (label.querySelector("input").checked = on.has(findings[i].index)));
    draw();
  }
  function restore() {
    const wanted = state.get("fixes") === "none" ? [] : state.numbers("fixes") ?? [(findings.find((f) => f.leads) ?? findings[0]).index];
    on.clear();
    findings.forEach((f) => wanted.includes(f.index) && on.add(f.index));
    check();
  }
  function draw() {
    const found = switchedStep(report, made, [...on].sort((a, b) => a - b));
    const left = made.step_ms - found.saving_ms;
    const [before, after, saved] = stepTexts(made.step_ms, found.saving_ms);
    said.replaceChildren(el("b", {}, `${before} → ${after} per ${wholeOf(report)}`),
      on.size ? `, saves ${saved} (${pctText((100 * found.saving_ms) / made.step_ms)})${faster(report, made.step_ms, left)}; ${found.how}.` : ": no fix selected.");
    const now = stateOf(made, []);
    bars.replaceChildren(pathBar("now", now.path, before, made.step_ms, 1), pathBar("with selected fixes", found.path, after, left, left / made.step_ms));
  }
  restore();
  state.onChange(restore);
  const used = Object.keys(PATH_COLOUR).filter((what) => made.states.some((s) => s.path[what] > 0.001 * made.step_ms));
  return panel("what-if", "What if", el("p", { class: "quiet" }, "Predicted step time with the selected fixes. Bars show what the step waits for, along its critical path; device work hidden behind it is not shown."),
    el("div", { class: "switches", role: "group", "aria-label": "Fixes" }, boxes),
    findings.length > 1 && el("p", {}, chip("all", all(true)), chip("none", all(false))),
    said, bars, legend(used.map((what) => [PATH_COLOUR[what], NAMES.path[what]])));
}

const faster = (report, before, after) => (known(report.step.tokens_per_s) && after > 0
  ? `, ${countText(Math.round(report.step.tokens_per_s))} → ${countText(Math.round((report.step.tokens_per_s * before) / after))} tokens/s` : "");

const stateOf = (made, fixes) => made.states.find((s) => s.fixes.length === fixes.length && s.fixes.every((f, i) => f === fixes[i]));

// Each fix was replayed alone, and the first k findings together. Any other set saves at least what its best fix does.
function switchedStep(report, made, fixes) {
  const exact = stateOf(made, fixes);
  if (exact) return { ...exact, how: "predicted by replaying the recorded step" };
  const best = fixes.map((f) => stateOf(made, [f])).reduce((a, b) => (b.saving_ms > a.saving_ms ? b : a));
  const combined = report.findings_combined[fixes.length - 1];
  const isFirst = fixes.every((f, i) => f === i) && combined;
  const saving = isFirst ? combined.saving_ms_per_step : best.saving_ms;
  const how = isFirst ? "predicted by replaying the recorded step" : "at least this much: only the first fixes were replayed together";
  const left = made.step_ms - saving, was = made.step_ms - best.saving_ms;
  const path = Object.fromEntries(Object.entries(best.path).map(([what, ms]) => [what, was > 0 ? (ms * left) / was : 0]));
  return { saving_ms: saving, path, how };
}

function pathBar(name, path, length, ms, share) {
  const parts = Object.entries(path).filter(([, v]) => v > 0);
  const text = parts.map(([what, v]) => `${NAMES.path[what] ?? what} ${timeText(v)}`).join(", ");
  return el("div", { class: "path" }, el("span", { class: "quiet" }, name),
    el("div", { class: "budget", role: "img", "aria-label": `${name}, ${length}: ${text}`, style: { width: `${Math.max(0.5, 100 * share)}%` } },
      parts.map(([what, v]) => el("span", {
        class: "part", style: { "flex-grow": String(v), background: `var(--${PATH_COLOUR[what] ?? "unknown"})` },
        on: { mousemove: (e) => tip.show(e, NAMES.path[what] ?? what, [timeText(v), pctText((100 * v) / ms)]), mouseleave: tip.hide },
      }))),
    el("span", { class: "number" }, length));
}
