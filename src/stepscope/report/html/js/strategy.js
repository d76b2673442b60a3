// What each parallel strategy did: any nested values as lists and tables, named and measured by their own names.

const KNOWN_FROM = {
  stated: "Stated by the groups in the trace.", pattern: "Derived from the communication pattern.", guess: "A guess: the communication fits other strategies too.",
};

function strategyView(report, shown) {
  const view = report.by_strategy;
  const views = Object.entries(view ?? {}).filter(([name, value]) => !["name", "sure"].includes(name) && !isEmpty(value));
  if (!view?.name || !views.length) return null;
  return panel("strategy", `Strategy: ${strategyText(view.name)}`,
    view.sure ? el("p", { class: "quiet" }, KNOWN_FROM[view.sure] ?? words(view.sure)) : null,
    ["pipeline", "stages", "buckets", "sharding", "layers", "experts"].map((name) => shown[name] && drawn(shown[name])),
    views.map(([name, value]) => foldedLater(`${words(name)} in numbers`, () => anyValue(name, value))));
}

const isEmpty = (v) => !known(v) || (Array.isArray(v) && !v.length) || (typeof v === "object" && !Object.keys(v).length);
const isPlain = (v) => v === null || typeof v !== "object";
const isSpread = (v) => v && typeof v === "object" && "mean" in v && "min" in v && "max" in v;

function anyValue(name, value) {
  if (isPlain(value)) return el("span", {}, valueText(name, value));
  if (Array.isArray(value)) return value.every(isPlain) ? el("span", {}, value.map((v) => valueText(name, v)).join(", ")) : rowsTable(name, value);
  if (Object.values(value).every(isSpread)) return spreads(value);
  const plain = Object.entries(value).filter(([, v]) => isPlain(v) || (Array.isArray(v) && v.every(isPlain) && v.length));
  const deep = Object.entries(value).filter(([k, v]) => !plain.some(([p]) => p === k) && !isEmpty(v));
  return el("div", {},
    plain.length > 0 && el("dl", { class: "facts" }, plain.flatMap(([k, v]) =>
      [el("dt", {}, titleOf(k)), el("dd", {}, [v].flat().map((x) => valueText(k, x)).join(", "))])),
    deep.map(([k, v]) => (k === "over_ranks" ? folded("over ranks", anyValue(k, v)) : el("div", {}, el("h3", {}, words(k)), anyValue(k, v)))));
}

function rowsTable(name, list) {
  if (list.every(Array.isArray)) return el("span", {}, list.map((v) => `[${v.join(", ")}]`).join(" "));
  const rows = list.filter((r) => r && typeof r === "object");
  const keys = [...new Set(rows.flatMap((r) => Object.keys(r)))].filter((k) => rows.some((r) => !isEmpty(r[k]) || isPlain(r[k])));
  const column = (k) => ({ title: titleOf(k), key: k, unit: rows.some((r) => typeof r[k] === "number") ? "number" : "text", show: (_, v) => (isPlain(v) ? valueText(k, v) : shortText(k, v)) });
  return table(words(name), rows, keys.map(column));
}

function shortText(name, value) {
  if (isSpread(value)) return valueText(name, value.mean);
  if (Array.isArray(value)) return value.map((v) => shortText(name, v)).join("; ");
  if (isPlain(value)) return valueText(name, value);
  const inside = Object.entries(value).filter(([, v]) => known(v));
  return inside.map(([k, v]) => (isPlain(v) ? `${titleOf(k)} ${valueText(k, v)}` : shortText(k, v))).join(", ");
}

function spreads(value) {
  const rows = Object.entries(value).map(([name, spread]) => ({ name, ...spread }));
  const column = (key) => ({ title: key, key, unit: "number", show: (r, v) => valueText(r.name, v) });
  return table("over ranks", rows, [{ title: "over ranks", key: (r) => titleOf(r.name) }, ...["mean", "min", "max", "std"].map(column)]);
}
