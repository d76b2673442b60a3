// The page of a run: seven tabs, each drawn when it is first shown.

const MS = (title, key, more) => ({ title, key, unit: "ms", ...more });

const RANK_COLUMNS = [
  { title: "rank", key: "rank", unit: "rank", show: (r) => `${r.rank}${r.isLate ? " (late)" : ""}` }, MS("step", "step"), MS("compute", "compute", { bar: true }),
  MS("wait", "wait", { bar: true, some: true }), MS("idle", "idle", { bar: true }), MS("exposed comm", "exposed", { bar: true, some: true }),
  MS("copies", "copies", { some: true }), { title: "overlap", key: "overlap_pct", unit: "pct" }, { title: "host", key: "host" },
];
const RANK_PARTS = {
  compute: ["forward", "backward", "optimizer", "other_compute"], exposed: ["exposed_transfer"], wait: ["wait", "pipeline_bubble"], copies: ["copy"],
  idle: ["data_loading", "launch_gap", "host_sync", "allocator", "host_stall", "unknown"],
};
const CLOCK_COLUMNS = [
  { title: "rank", key: "rank", unit: "rank" }, { title: "host", key: "host" }, { title: "events", key: "num_events", unit: "count" },
  MS("clock offset", (r) => (known(r.clock_offset_us) ? r.clock_offset_us / 1000 : null)), MS("uncertainty", (r) => (known(r.clock_uncertainty_us) ? r.clock_uncertainty_us / 1000 : null)),
  { title: "drift ppm", key: "clock_drift_ppm", unit: "rate" },
];
const COLLECTIVE_COLUMNS = [
  { title: "collective", key: "op", unit: "words", below: (r) => (known(r.group_size) ? `${r.group} (${r.group_size})` : r.group) },
  MS("total", "total_ms", { bar: true }), MS("wait", "wait_ms", { bar: true }), MS("transfer", "transfer_ms"), MS("not hidden", "exposed_ms"),
  { title: "bytes", key: "bytes", unit: "bytes" }, { title: "count", key: "count", unit: "count" }, { title: "bus GB/s", key: "busbw_gb_per_s", unit: "rate" },
  { title: "all steps GB/s", key: "live_busbw_gb_per_s", unit: "rate" }, { title: "of the link", key: "link_pct", unit: "pct" }, { title: "where", key: "span" }, { title: "last rank", key: (r) => (known(r.late_rank) ? r.late_rank : null), unit: "rank" },
];
const LINK_COLUMNS = [
  { title: "communication", key: (r) => r.span ?? "unknown hosts", below: (r) => (known(r.group_size) ? `${r.group} (${r.group_size})` : r.group) }, { title: "nodes", key: "nodes", unit: "count" },
  MS("wait", "wait_ms", { bar: true }), MS("transfer", "transfer_ms", { bar: true }), MS("not hidden", "exposed_ms"), { title: "bytes", key: "bytes", unit: "bytes" }, { title: "count", key: "count", unit: "count" },
  { title: "in use GB/s", key: "used_gb_per_s", unit: "rate" }, { title: "link GB/s", key: "link_gb_per_s", unit: "rate" }, { title: "of the link", key: "link_pct", unit: "pct" }, { title: "link", key: "link" },
];
const KERNEL_COLUMNS = [
  { title: "kernel", key: "name", unit: "kernel" }, MS("total", "total_ms", { bar: true }),
  { title: "count", key: "count", unit: "count" }, MS("mean", "mean_ms"), { title: "family", key: "family", unit: "words" }, { title: "precision", key: "precision" },
  { title: "TFLOP/s", key: "tflops", unit: "rate" }, { title: "GB/s", key: "gb_per_s", unit: "rate" }, { title: "bound", key: "bound" },
];
const MEASURED_COLUMNS = [
  { title: "by", key: "bound_from" }, { title: "occupancy", key: "occupancy_pct", unit: "pct" }, { title: "DRAM", key: "dram_pct", unit: "pct" },
  { title: "tensor pipe", key: "tensor_pct", unit: "pct" }, { title: "waits for", key: "stall" },
];
const OPERATOR_COLUMNS = [
  { title: "operator", key: "name" }, MS("device self", "device_self_ms", { bar: true, some: true }), MS("host self", "host_self_ms", { bar: true }),
  { title: "calls", key: "calls", unit: "count" }, MS("device total", "device_total_ms", { some: true }), MS("host total", "host_total_ms"), { title: "shapes", key: "shapes" },
];
const PATH_COLUMNS = [
  { title: "what", key: "name", unit: "kernel", below: (r) => `${words(r.what)} · rank ${r.rank}` }, MS("per step", "ms_per_step", { bar: true }), { title: "of the step", key: "pct", unit: "pct" },
];
const MEMORY_COLUMNS = [
  { title: "rank", key: "rank", unit: "rank" },
  ...["peak_allocated", "peak_reserved", "device_total", "cache", "parameter", "host_peak"].map((name) => ({ title: words(name), key: `${name}_bytes`, unit: "bytes" })),
  { title: "of the device", key: "peak_pct_of_total", unit: "pct" }, { title: "allocator calls", key: "allocator_calls", unit: "count" },
];
const of = (value, most, unit) => `${digits(value)}${known(most) ? ` of ${digits(most)}` : ""} ${unit}`;
const DEVICE_COLUMNS = [
  { title: "rank", key: "rank", unit: "rank" }, { title: "device", key: "device" },
  { title: "clock in use", key: "sm_clock_mhz", unit: "rate", show: (r, v) => (known(v) ? of(v, r.max_sm_clock_mhz, "MHz") : NONE) },
  { title: "power", key: "power_w", unit: "rate", show: (r, v) => (known(v) ? of(v, r.power_limit_w, "W") : NONE) },
  { title: "hottest °C", key: "temperature_c", unit: "rate" }, { title: "utilisation", key: "utilization_pct", unit: "pct" },
  { title: "throttled", key: "throttled_pct", unit: "pct",
    show: (r, v) => [pctText(v), Object.entries(r.throttle_reasons ?? {}).map(([why, pct]) => `${words(why)} ${pctText(pct)}`).join(", ")].filter(Boolean).join(": ") },
  { title: "memory of others", key: "others_bytes", unit: "bytes" }, { title: "samples", key: "num_samples", unit: "count" },
];
const joules = (value) => (value >= 1e7 ? `${digits(value / 1e6)} MJ` : value >= 1e4 ? `${digits(value / 1e3)} kJ` : value >= 0.1 || !value ? `${digits(value)} J` : `${digits(1e3 * value)} mJ`);
const ENERGY_COLUMNS = [
  { title: "part", key: (r) => NAMES.energy[r.part] ?? words(r.part) }, { title: "J per step", key: "j", unit: "rate", bar: true }, { title: "share", key: "pct", unit: "pct" },
  { title: "likely", key: (r) => `${digits(r.low_j)} to ${joules(r.high_j)}` }, { title: "W", key: "power_w", unit: "rate" }, MS("time", "ms_per_step"),
];
const METER_COLUMNS = [
  { title: "ranks", key: (r) => r.ranks.join(", ") }, { title: "device", key: "name" }, { title: "J per step", key: "j_per_step", unit: "rate", bar: true },
  { title: "J in all", key: "total_j", unit: "rate" }, { title: "mean W", key: "mean_w", unit: "rate" }, { title: "seconds", key: "seconds", unit: "rate" }, { title: "unknown because", key: "reason" },
];
const NCCL_COLUMNS = [
  { title: "rank", key: "rank", unit: "rank" }, { title: "version", key: "version" }, { title: "channels", key: "channels", unit: "count" },
  { title: "connections", key: (r) => Object.entries(r.transports ?? {}).map(([via, count]) => `${via} ${count}`).join(", ") || null },
  { title: "network", key: "network" }, { title: "warnings", key: (r) => (r.warnings ?? []).join("; ") || null },
];
const CHECK_COLUMNS = [
  { title: "check", key: (r) => r.check.id, unit: "words" }, { title: "status", key: (r) => r.check.status, unit: "verdict" }, { title: "value", key: (r) => r.check.value, unit: "rate" },
  { title: "good", key: (r) => r.check.good }, { title: "bad", key: (r) => r.check.bad }, { title: "why", key: (r) => r.check.reason }, { title: "try", key: "remedy" },
];

// Sums of the window as numbers of one step; unchanged where no step was recorded.
function perStep(report, rows, keys) {
  const steps = report.run.num_steps || 1;
  return rows.map((row) => ({ ...row, ...Object.fromEntries(keys.filter((key) => known(row[key])).map((key) => [key, row[key] / steps])) }));
}
const perText = (report) => `${report.run.num_ranks > 1 ? "Mean over ranks, " : ""}${report.run.num_steps ? "per step" : "over the window"}.`.replace(/^./, (c) => c.toUpperCase());

// A section with a table, null where there are no rows.
const tableSection = (id, title, note, rows, columns, options) => (rows.length ? panel(id, title, note && el("p", { class: "quiet" }, note), table(title, rows, columns, options)) : null);
// A section with those of these pictures that there are.
function pictureSection(id, title, ...list) {
  const there = list.filter(Boolean);
  if (there.length === 1) return panel(id, there[0].title, drawn(there[0], { heading: false }));
  return there.length ? panel(id, title, drawings(...there)) : null;
}
const hint = (id, title, text) => panel(id, title, el("p", {}, text));

function rankTables(report) {
  const summed = ["bytes", "count", "wait_ms", "transfer_ms", "exposed_ms"], sums = perStep(report, report.collectives, summed);
  const rows = sums.map((r) => ({ ...r, total_ms: known(r.wait_ms) ? r.wait_ms + r.transfer_ms : null }));
  const per = report.run.num_steps ? "per step" : "over the window";
  return [
    tableSection("ranks", "Ranks", `Times ${per}: compute, exposed communication, waiting, copies and idle sum to the ${wholeOf(report)}. Bars of a column whose values are alike begin below the smallest.`, lateFirst(report).map(rankRow), RANK_COLUMNS),
    tableSection("collectives", "Collectives", `Per rank, ${per}. Waiting lasts until the last rank arrives; transfer is the rest. Compute hides what runs under it.`, rows, COLLECTIVE_COLUMNS, { sort: "total_ms" }),
    tableSection("links", "Within and between nodes", `Per rank, ${per}. The link is the chip's within a node, and the ranks' part of the node's network between nodes.`, perStep(report, report.links ?? [], summed), LINK_COLUMNS),
  ];
}

function lateFirst(report) {
  const late = new Set(report.stragglers.map((s) => s.rank));
  const ranks = report.ranks.map((r) => ({ ...r, isLate: late.has(r.rank) }));
  return [...ranks.filter((r) => r.isLate), ...ranks.filter((r) => !r.isLate)];
}

function rankRow(rank) {
  const { rank: number, host, overlap_pct, isLate, budget_ms_per_step: parts } = rank, row = { rank: number, host, overlap_pct, isLate };
  if (!parts) return row;
  for (const [name, of] of Object.entries(RANK_PARTS)) row[name] = of.reduce((sum, part) => sum + (parts[part] ?? 0), 0);
  return { ...row, step: Object.values(parts).reduce((a, b) => a + b, 0) };
}

function kernelTables(report) {
  const inSteps = report.kernels.some((r) => r.step_ms > 0);
  const windows = report.ranks.map((r) => r.window_ms).filter(known), whole = inSteps ? stepOf(report) : windows.reduce((a, b) => a + b, 0) / windows.length;
  const inStep = (r) => ({ ...r, count: r.count_per_step, total_ms: r.step_ms, mean_ms: r.count_per_step ? r.step_ms / r.count_per_step : null });
  const rows = report.kernels.map((r) => (inSteps ? inStep(r) : r)).map((r) => ({ ...r, share: whole > 0 ? r.total_ms / whole : null }));
  const per = inSteps ? perText(report) : "Mean over ranks, over the window.", share = { title: `of the ${inSteps ? "step" : "window"}`, key: "share", unit: "share" };
  const measured = report.kernels.some((r) => r.measured_share > 0);
  const operators = perStep(report, report.operators, ["calls", "host_self_ms", "host_total_ms", "device_self_ms", "device_total_ms"]);
  const onDevice = operators.some((r) => r.device_self_ms > 0);
  return [
    tableSection("kernels", "Kernels", `${per} Kernels that overlap count in full.`, rows, [...KERNEL_COLUMNS.slice(0, 2), share, ...KERNEL_COLUMNS.slice(2), ...(measured ? MEASURED_COLUMNS : [])], { sort: "total_ms" }),
    tableSection("operators", "Operators", perText(report), operators, OPERATOR_COLUMNS, { sort: onDevice ? "device_self_ms" : "host_self_ms" }),
  ];
}

function memoryTab(report, shown) {
  const view = report.memory, every = report.run.num_ranks > 1 || !shown.memory_of_fullest ? shown.memory_over_steps : null;
  const there = [shown.snapshot_owner, shown.snapshot_purpose, shown.memory_of_fullest, shown.memory_peak, every, shown.memory_over_run].filter(Boolean);
  const ranks = view?.ranks ?? [];
  if (!ranks.length && !there.length) return [hint("memory", "Memory", "Memory was not recorded; record with --memory.")];
  const growing = ranks.filter((r) => r.growth?.leaks || r.host_growth?.leaks).map((r) => r.rank);
  return [panel("memory", "Memory", growing.length ? el("p", { class: "warning" }, `Memory grows from step to step on rank ${growing.join(", ")}.`) : null,
    drawings(...there), ranks.length ? table("memory of ranks", ranks, MEMORY_COLUMNS) : null,
    shown.memory_peak ? null : el("p", { class: "quiet" }, "What is allocated at the peak was not recorded; record with --memory."))];
}

function devices(report, shown) {
  const rows = report.devices ?? [], logs = report.nccl ?? [], over = ["clock", "power", "utilisation", "temperature"].map((name) => shown[`device_${name}`]).filter(Boolean);
  if (!rows.length && !logs.length) return null;
  return panel("devices", "Devices", el("p", { class: "quiet" }, "Sampled over all steps of the job, not only the window."),
    rows.length ? table("devices", rows, DEVICE_COLUMNS) : null, over.length ? drawings(...over) : null, logs.length ? el("h3", {}, "NCCL log") : null, logs.length ? table("NCCL log", logs, NCCL_COLUMNS) : null);
}

// Joules by the devices' counters; null where none was recorded.
function energy(report) {
  const all = report.energy;
  if (!all || (!known(all.j_per_step) && !all.devices.length)) return null;
  const per = [[all.j_per_step, "per step"], [all.j_per_token, "per token"], [all.j_per_sample, "per sample"], [all.total_j, "in all"]].filter(([value]) => known(value));
  const late = all.late_ranks.map((r) => `Lateness of rank ${r.rank} costs ${joules(r.waste_j_per_step)} per step: ${joules(r.waiting_j_per_step)} in waiting ranks, ${joules(r.own_j_per_step)} in its own device.`);
  const host = all.host ? [`The host's processors take ${joules(all.host.j_per_step)} per step in addition.`] : [];
  return panel("energy", "Energy", el("p", {}, per.length ? per.map(([value, of]) => `${joules(value)} ${of}`).join(", ") : `Unknown: ${all.reason}`),
    all.parts.length ? table("energy of the step", all.parts, ENERGY_COLUMNS) : null, all.devices.length ? table("energy of devices", all.devices, METER_COLUMNS) : null,
    [...late, ...host, ...all.notes].map((line) => el("p", { class: "quiet" }, line)));
}

function trustTab(data) {
  const { report, slices } = data;
  const about = (s) => `timeline: step ${s.step ?? "unknown"}, ${numberOf(s.ranks.length, "rank")}, times rounded to ${s.rounded} ns`;
  const item = (mark, tone, line) => el("li", { class: tone }, el("span", { class: "mark", "aria-hidden": "true" }, mark), el("span", {}, line));
  const needs = new Map();
  for (const { rule, needs: what } of report.not_examined) needs.set(what, [...(needs.get(what) ?? []), rule]);
  const missing = [...needs].map(([what, rules]) => ({ what, rules: rules.join(", ") }));
  return [
    panel("trust", "Data quality", el("ul", { class: "trust" }, [...data.trust, ...(slices ? [about(slices), ...slices.notes] : [])].map((line) => item("·", null, line)),
      report.warnings.map((line) => item("!", "warning", line)))),
    report.checks.length ? panel("checks", "Checks", table("checks", report.checks.map((check) => ({ check })), CHECK_COLUMNS, { most: 40 }),
      (report.guides ?? []).map((guide) => foldedLater(`${guide.title}: ${guide.why}`, () => table(guide.title, guide.items, CHECK_COLUMNS)))) : null,
    missing.length || report.not_judged?.length ? panel("not-examined", "What was not examined", (report.not_judged ?? []).map((line) => el("p", {}, line)),
      missing.length ? table("not examined", missing, [{ title: "needs", key: "what" }, { title: "findings", key: "rules" }]) : null) : null,
    tableSection("clocks", "Clocks and events", "Offsets against the shared clock.", report.ranks, CLOCK_COLUMNS),
  ];
}

// What makes each tab; null parts are those that this run has nothing for.
/** @type {(data: PageData, timelines: HTMLElement | null) => [string, string, () => any[]][]} */
function tabsOf(data, timelines) {
  const { report, grid, pictures: shown } = data;
  const place = timelines && el("div", { class: "timeline-place compact" }), whole = timelines && el("div", { class: "timeline-place" });
  return [
    ["summary", "Summary", () => [clockBanner(report), el("p", { class: "sentence" }, glued(data.sentence)), ...opening(report), cards(report), ...findings(report, grid, place), switches(report),
      pictureSection("budget", "Step time and MFU", shown.budget, shown.waterfall), pictureSection("run-steps", "Steps over the run", shown.run_steps), docsPanel(report)]],
    ["timeline", "Timeline", () => [whole ?? hint("timeline", "Timeline", "Nothing ran in a recorded step."), pictureSection("steps", "Recorded steps", shown.step_times),
      tableSection("critical-path", "Critical path", `What the length of a step consists of${report.run.num_ranks > 1 ? ", over all ranks" : ""}.`, report.critical_path, PATH_COLUMNS, { sort: "ms_per_step" }),
      tableSection("idle", "Why the device was idle", perText(report), report.idle.filter((r) => r.ms_per_step > 0), [{ title: "cause", key: (r) => NAMES.causes[r.cause] ?? words(r.cause) }, MS("per step", "ms_per_step", { bar: true })], { sort: "ms_per_step" })]],
    ["ranks", "Ranks", () => [pictureSection("rank-times", "Ranks compared", shown.rank_times), grid && grid.ranks.length > 1 ? heatmap(grid, report.ranks) : null, ...rankTables(report),
      pictureSection("traffic", "Between ranks", shown.waiting, shown.sending), pictureSection("bandwidth", "Bandwidth", shown.bandwidth, shown.calibration), strategyView(report, shown), devices(report, shown), energy(report)]],
    ["code", "Code", () => [code(report) ?? hint("code", "Code", "Source lines were not recorded: run the job with stepscope record, or add --stacks to a profiler.")]],
    ["kernels", "Kernels", () => {
      const there = [...kernelTables(report), pictureSection("kernel-pictures", "Kernels in pictures", shown.roofline, shown.kernel_durations, shown.device_queue)];
      return there.some(Boolean) ? there : [hint("kernels", "Kernels", "No kernels or operators were recorded.")];
    }],
    ["memory", "Memory", () => memoryTab(report, shown)],
    ["trust", "Data quality", () => trustTab(data)],
  ];
}

// One tab is shown at a time; the timeline is one element that the two tabs with a place for it share.
function showTabs(root, data) {
  const timelines = timeline(data), tabs = tabsOf(data, timelines);
  const buttons = new Map(tabs.map(([id, title]) => [id, el("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}`, on: { click: () => choose(id) } }, title)]));
  const panels = new Map(tabs.map(([id]) => [id, el("div", { role: "tabpanel", id: `panel-${id}`, "aria-labelledby": `tab-${id}`, hidden: true })]));
  const bar = el("div", { class: "contents", role: "tablist", "aria-label": "Parts of the report" }, ...buttons.values());
  let shown = "";
  function build(id) {
    const box = panels.get(id);
    if (box && !box.firstChild) box.append(...tabs.find(([one]) => one === id)?.[2]().filter(Boolean) ?? []);
    return box;
  }
  function show(id) {
    const box = build(id);
    if (!box || shown === id) return;
    shown = id;
    for (const [one, button] of buttons) {
      button.setAttribute("aria-selected", String(one === id));
      button.tabIndex = one === id ? 0 : -1;
      panels.get(one).hidden = one !== id;
    }
    const place = timelines && box.querySelector(".timeline-place");
    if (place) place.append(timelines);
    redraws.forEach((draw) => draw());
  }
  function choose(id) {
    state.set({ tab: id === tabs[0][0] ? null : id, at: null }, { push: true });
    show(id);
  }
  const restore = () => show(tabs.find(([id]) => id === state.get("tab"))?.[0] ?? tabs[0][0]);
  bar.addEventListener("keydown", (e) => {
    const ids = [...buttons.keys()], at = ids.indexOf(shown), to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: ids.length - 1 }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    const id = ids[(to + ids.length) % ids.length];
    choose(id);
    buttons.get(id).focus();
  });
  // The tab that holds a section: one that is drawn, or else the first that has it once drawn.
  document.addEventListener("open-section", ({ detail: id }) => {
    if (id === "timeline" && timelines) return timelines.closest("[hidden]") || !timelines.isConnected ? choose("timeline") : undefined;
    const holds = () => [...panels].find(([, box]) => box.querySelector(`#${CSS.escape(id)}`))?.[0];
    if (!id) return undefined;
    let found = holds();
    for (const [one] of tabs) if (!found) { build(one); found = holds(); }
    return found && found !== shown ? choose(found) : undefined;
  });
  // On paper all tabs are below each other.
  addEventListener("beforeprint", () => {
    for (const [id] of tabs) build(id).hidden = false;
    redraws.forEach((draw) => draw());
  });
  addEventListener("afterprint", () => panels.forEach((box, id) => (box.hidden = id !== shown)));
  root.before(bar);
  root.append(...panels.values());
  restore();
  state.onChange(restore);
}

async function main() {
  const root = byId("report"), data = await unpack(byId("data").textContent);
  byId("top").append(...header(data));
  showTabs(root, data);
  let width = root.clientWidth;
  new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    redraws.forEach((draw) => draw());
  }).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((draw) => draw()));
  if (scrollY === 0) state.goTo();
  root.setAttribute("aria-busy", "false");
  document.documentElement.dataset.readyMs = performance.now().toFixed(0);
}

main().catch((error) => {
  byId("report").append(el("p", { role: "alert", class: "warning" }, `This page could not be drawn: ${error.message}`));
  throw error;
});
