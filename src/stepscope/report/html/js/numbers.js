// Words and colours that every part of the page shares, and numbers as people read them.

const GROUPS = ["compute", "transfer", "wait", "copy", "input", "host", "unknown"];
const KINDS = ["forward", "backward", "optimizer", "other", "transfer", "unmatched", "copy", "range", "idle", "wait"];
const LANES = ["compute", "comm", "copy", "host"];
const LANE_OF_KIND = [0, 0, 0, 0, 1, 1, 2, 3, 0, 1];
const NONE = "–";

/** @template T @param {T} x @returns {x is NonNullable<T>} */
const known = (x) => x !== null && x !== undefined && !Number.isNaN(x);
// A strategy as people write it: "ddp x tp2" is "DDP × TP2".
const strategyText = (name) => String(name).split(" x ").map((word) => (/^(dd|fs|tp|pp|ep|cp)/.test(word) ? word.toUpperCase() : word)).join(" × ").replaceAll("-ZERO", " ZeRO-");
const words = (id) => String(id).replaceAll("_pct", ", %").replaceAll("_", " ");

// A number between two exactly is rounded to the even one, as on a terminal: 51.25 is 51.2.
function rounded(x, places) {
  const lower = Math.floor(x * 10 ** places);
  const between = Number.isInteger(x * 2 ** (places + 1)) && x * 10 ** places - lower === 0.5;
  return (between ? (lower + Math.abs(lower % 2)) / 10 ** places : x).toFixed(places);
}

// A number with commas between thousands; zeros at the end beyond `least` places are left out. Without `Intl`, whose
// first use alone takes as long as drawing a chart.
function written(x, places, least = places) {
  const [whole, rest = ""] = rounded(x, places).split(".");
  const kept = rest.slice(0, Math.max(least, rest.replace(/0+$/, "").length));
  return whole.replace(/\B(?=(\d{3})+$)/g, ",").replace("-", "−") + (kept && `.${kept}`);
}

// A kernel's name from where it differs from the others; the whole one is in the tooltip.
const shortName = (name) => String(name ?? NONE).replace(/^void /, "").replace(/at::native::|\(anonymous namespace\)::/g, "");

function digits(x, significant = 3) {
  return written(x, Math.min(2, Math.max(0, significant - 1 - Math.floor(Math.log10(Math.abs(x) || 1)))));
}

function timeText(ms) {
  if (!known(ms)) return NONE;
  const size = Math.abs(ms);
  if (size === 0) return "0 ms";
  if (size >= 999.5) return `${digits(ms / 1000)} s`;
  if (size >= 0.9995) return `${digits(ms)} ms`;
  return size >= 0.0009995 ? `${digits(ms * 1000)} µs` : `${written(ms * 1e6, 0)} ns`;
}

// A step, what is left of it and what is saved, with the same decimals: they add up as shown.
function stepTexts(step, saving) {
  const [size, unit] = step >= 999.5 ? [1000, "s"] : step >= 0.9995 ? [1, "ms"] : [0.001, "µs"];
  const places = Math.min(2, Math.max(0, 2 - Math.floor(Math.log10(step / size || 1))));
  const [before, saved] = [step, saving].map((ms) => Number((ms / size).toFixed(places)));
  return [before, Math.max(0, before - saved), saved].map((x) => `${written(x, places)} ${unit}`);
}

// Text in which a number stays on one line with its unit, and a minus is one.
const glued = (text) => String(text).replace(/(^|[\s(])-(?=\d)/g, "$1−").replace(/(\d) (?=%|[mµn]?s\b|[kMGT]?B\b)/g, "$1\u00a0");

function bytesText(bytes) {
  if (!known(bytes)) return NONE;
  let size = bytes;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(size) < 999.95) return unit === "B" ? `${Math.round(size)} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}

const pctText = (x, places = 1) => (known(x) ? `${written(x, places)} %` : NONE);
const countText = (x) => (known(x) ? written(x, Math.abs(x) < 1000 ? 1 : 0, 0) : NONE);

const numberOf = (count, what) => `${countText(count)} ${what}${count === 1 ? "" : "s"}`;

// A value in its unit, as every table, card and chart writes it.
const UNITS = {
  ms: timeText, bytes: bytesText, pct: (v) => pctText(v), share: (v) => pctText(100 * v), x: (v) => `${digits(v)}×`, count: countText,
  gb_per_s: (v) => `${digits(v)} GB/s`, flops: flopsText, rate: (v) => digits(v), words, kernel: shortName, rank: (v) => (v < 0 ? NONE : String(v)),
  number: (v) => (Number.isInteger(v) ? (Math.abs(v) < 1e4 ? String(v) : written(v, 0)) : written(v, Math.abs(v) >= 100 ? 0 : Math.abs(v) >= 1 ? 2 : 4, 0)),
  signed_ms: (v) => (v > 0 ? `+${timeText(v)}` : timeText(v)), signed_pct: (v) => (v > 0 ? `+${pctText(v)}` : pctText(v)),
};
const TEXT_UNITS = ["text", "words", "kernel", "name", "verdict", "code"];
function unitText(value, unit) {
  if (!known(value)) return NONE;
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" || TEXT_UNITS.includes(unit) ? (UNITS[unit] ?? String)(value) : String(value);
}

function flopsText(flops) {
  const power = Math.min(7, Math.max(0, Math.floor(Math.log10(Math.max(Math.abs(flops), 1)) / 3)));
  return `${digits(flops / 1000 ** power)} ${["", "k", "M", "G", "T", "P", "E", "Z"][power]}FLOP`;
}

// A value by the ending of its name, the way the report's JSON names its units.
function valueText(name, value) {
  if (!known(value)) return NONE;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (/_ms$|_ms_per_step$/.test(name)) return timeText(value);
  if (/bytes(_per_step)?$/.test(name)) return bytesText(value);
  if (/_pct$/.test(name)) return pctText(value);
  if (/_gb_per_s$/.test(name)) return `${digits(value)} GB/s`;
  return countText(value);
}

// A column's or row's title, without the unit that its values show.
function titleOf(name) {
  const title = words(name.replace(/_ms$|_bytes$|_pct$|_gb_per_s$/, ""));
  return /_pct$/.test(name) && !title.includes("share") ? `${title} share` : title;
}

const pageStyle = () => getComputedStyle(document.documentElement);
const colour = (name) => pageStyle().getPropertyValue(`--${name}`).trim();

/** @type {(text: string) => Rgb} */
function rgb(text) {
  const n = parseInt(text.slice(1), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

function median(values) {
  const sorted = Array.from(values).filter((x) => !Number.isNaN(x)).sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : NaN;
}
