// What each parallel strategy did: any nested values as lists and tables, named and measured by their own names.

const KNOWN_FROM = {
  stated: "Known from what the trace says of its groups.", pattern: "Known from the pattern of its communication.", guess: "A guess: the communication would fit other strategies too.",
};

function strategyView(report, shown) {
  const view = report.by_strategy;
  if (!view || !view.name) return null;
  const views = Object.entries(view).filter(([name, value]) => !["name", "sure"].includes(name) && !isEmpty(value));
  if (!views.length) return null;
  const box = panel("strategy", `Strategy: ${view.name}`);
  if (view.sure) box.append(el("p", { class: "quiet" }, KNOWN_FROM[view.sure] ?? words(view.sure)));
  for (const [name, value] of views) {
    if (STRATEGY_PICTURES[name]) box.append(strategyPicture(name, value, shown));
    if (name === "pipeline" && shown.pipeline) box.append(drawn(shown.pipeline));
  }
  for (const [name, value] of views) box.append(foldedLater(`${words(name)} in numbers`, () => anyValue(name, value)));
  return box;
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
  const show = (k) => (v) => (isPlain(v) ? valueText(k, v) : shortText(k, v));
  const isLong = (k) => rows.some((r) => typeof r[k] === "string" && r[k].length > 40);
  const column = (k) => ({ title: titleOf(k), get: (r) => r[k], show: show(k), number: rows.some((r) => typeof r[k] === "number"), name: isLong(k) });
  return sortedTable(words(name), rows, keys.map(column));
}

function shortText(name, value) {
  if (isSpread(value)) return valueText(name, value.mean);
  if (Array.isArray(value)) return value.map((v) => shortText(name, v)).join("; ");
  if (isPlain(value)) return valueText(name, value);
  const inside = Object.entries(value).filter(([, v]) => known(v));
  return inside.map(([k, v]) => (isPlain(v) ? `${titleOf(k)} ${valueText(k, v)}` : shortText(k, v))).join(", ");
}

const spreads = (value) => plainTable(["over ranks", "mean", "min", "max", "std"],
  Object.entries(value).map(([k, s]) => [titleOf(k), ...[s.mean, s.min, s.max, s.std].map((v) => valueText(k, v))]));
