// How far to trust the report: what was measured about the measurement itself, then every warning.

function trust(data) {
  const { report, slices } = data;
  const about = (s) => `timeline: step ${s.step ?? "unknown"}, ${numberOf(s.ranks.length, "rank")}, times rounded to ${s.rounded} ns`;
  const drawn = slices ? [about(slices), ...slices.notes] : [];
  const item = (mark, tone, line) => el("li", { class: tone }, el("span", { class: "mark", "aria-hidden": "true" }, mark), el("span", {}, line));
  return panel("trust", "How far to trust this report", el("ul", { class: "trust" },
    [...data.trust, ...drawn].map((line) => item("·", null, line)), report.warnings.map((line) => item("!", "warning", line))));
}
