// Words and colours that every part of the page shares, and numbers as people read them.

const GROUPS = ["compute", "transfer", "wait", "copy", "input", "host", "unknown"];
const GROUP_TEXT = {
  compute: "compute", transfer: "communication", wait: "waiting for others", copy: "copies",
  input: "input", host: "host (gaps, syncs, stalls)", unknown: "unknown",
};
const GROUP_OF_PART = {
  forward: "compute", backward: "compute", optimizer: "compute", other_compute: "compute",
  exposed_transfer: "transfer", wait: "wait", pipeline_bubble: "wait", copy: "copy", data_loading: "input",
  launch_gap: "host", host_sync: "host", allocator: "host", host_stall: "host", unknown: "unknown",
};
const KINDS = ["forward", "backward", "optimizer", "other", "transfer", "unmatched", "copy", "range", "idle", "wait"];
const KIND_TEXT = {
  forward: "forward", backward: "backward", optimizer: "optimizer", other: "other compute", transfer: "transfer",
  unmatched: "unmatched communication", copy: "copy", range: "host range", idle: "nothing ran", wait: "waiting for the last rank",
};
const LANES = ["compute", "comm", "copy", "host"];
const LANE_OF_KIND = [0, 0, 0, 0, 1, 1, 2, 3, 0, 1];
const NONE = "–";

/** @template T @param {T} x @returns {x is NonNullable<T>} */
const known = (x) => x !== null && x !== undefined && !Number.isNaN(x);
const words = (id) => String(id).replaceAll("_", " ");

// A number with commas between thousands; zeros at the end beyond `least` places are left out. Without `Intl`, whose
// first use alone takes as long as drawing a chart.
function written(x, places, least = places) {
  const [whole, rest = ""] = x.toFixed(places).split(".");
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
  if (size >= 10000) return `${digits(ms / 1000)} s`;
  if (size >= 0.9995) return `${digits(ms)} ms`;
  return size >= 0.0009995 ? `${digits(ms * 1000)} µs` : `${Math.round(ms * 1e6)} ns`;
}

function bytesText(bytes) {
  if (!known(bytes)) return NONE;
  let size = bytes;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(size) < 999.95) return unit === "B" ? `${Math.round(size)} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}

// Round numbers from 0 to `most` or just above it: steps of 1, 2, 2.5 or 5 times a power of ten, of the unit shown.
function niceTicks(most, unit = 1) {
  const step = roundStep(most / unit / 4) * unit;
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, i) => i * step);
}
const roundStep = (about) => {
  const power = 10 ** Math.floor(Math.log10(Math.max(about, 1e-12)));
  return ([1, 2, 2.5, 5].find((s) => s * power >= about * 0.999) ?? 10) * power;
};
// Round numbers between two that do not begin at 0.
function ticksBetween(low, high, unit = 1) {
  const step = roundStep((high - low || high * 0.1) / unit / 3) * unit;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}
// The unit in which a time of this size is written, in ms, and that of bytes: ticks are round in it.
const timeUnit = (ms) => (ms >= 10000 ? 1000 : ms >= 0.9995 ? 1 : ms >= 0.0009995 ? 1e-3 : 1e-6);
const byteUnit = (bytes) => 1000 ** Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(bytes, 1)) / 3)));
const tickText = (value, unit, name) => `${written(value / unit, 3, 0)} ${name}`;
const timeTick = (ms, unit) => (ms ? tickText(ms, unit, { 1000: "s", 1: "ms", 0.001: "µs", 0.000001: "ns" }[unit]) : "0");
const byteTick = (bytes, unit) => (bytes ? tickText(bytes, unit, ["B", "kB", "MB", "GB", "TB"][Math.round(Math.log10(unit) / 3)]) : "0");

const pctText = (x, places = 1) => (known(x) ? `${written(x, places)} %` : NONE);
const countText = (x) => (known(x) ? written(x, Math.abs(x) < 1000 ? 1 : 0, 0) : NONE);

const numberOf = (count, what) => `${countText(count)} ${what}${count === 1 ? "" : "s"}`;

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
