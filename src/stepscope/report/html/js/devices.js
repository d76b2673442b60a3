// What the recorder measured beside the traces: the state of the devices, NCCL's log, and memory step by step.

function devices(report) {
  const rows = report.devices ?? [], logs = report.nccl ?? [];
  if (!rows.length && !logs.length) return null;
  const box = panel("devices", "Devices", el("p", { class: "quiet" }, "Sampled beside all steps of the job, not only the window."));
  if (rows.length) box.append(deviceTable(rows));
  if (logs.length) box.append(el("h3", {}, "NCCL's own log"), ncclTable(logs));
  return box;
}

function deviceTable(rows) {
  const of = (value, most, unit) => (known(value) ? `${digits(value)}${known(most) ? ` of ${digits(most)}` : ""} ${unit}` : NONE);
  const reasons = (r) => Object.entries(r.throttle_reasons ?? {}).map(([why, pct]) => `${words(why)} ${pctText(pct)}`).join(", ");
  return sortedTable("devices", rows, [
    { title: "rank", get: (r) => r.rank, number: true },
    textColumn("device", "device", String),
    { title: "clock in use", get: (r) => r.sm_clock_mhz, show: (v, r) => of(v, r.max_sm_clock_mhz, "MHz"), number: true },
    { title: "power", get: (r) => r.power_w, show: (v, r) => of(v, r.power_limit_w, "W"), number: true },
    { title: "hottest", get: (r) => r.temperature_c, show: (v) => of(v, null, "°C"), number: true },
    { title: "utilisation", get: (r) => r.utilization_pct, show: (v) => pctText(v), number: true },
    { title: "throttled", get: (r) => r.throttled_pct, show: (v, r) => (known(v) ? [pctText(v), reasons(r)].filter(Boolean).join(": ") : NONE), number: true },
    { title: "memory of others", get: (r) => r.others_bytes, show: bytesText, number: true },
    countColumn("samples", "num_samples"),
  ], { filter: (r) => `rank ${r.rank} ${r.device ?? ""}` });
}

function ncclTable(logs) {
  const listed = (v) => Object.entries(v ?? {}).map(([via, count]) => `${via} ${count}`).join(", ") || NONE;
  return sortedTable("NCCL's log", logs, [
    { title: "rank", get: (r) => r.rank, number: true },
    textColumn("version", "version", String),
    countColumn("channels", "channels"),
    { title: "connections", get: (r) => r.transports, show: listed },
    textColumn("network", "network", String),
    { title: "warnings", get: (r) => (r.warnings ?? []).join("; ") || null, show: (v) => v ?? NONE },
  ]);
}

// Memory of the rank that holds most of it, by step: what is allocated on the device, or what the process has resident.
function memoryBySteps(report) {
  const most = (values) => Math.max(...(values ?? []).filter(known), 0);
  const key = (report.memory_steps ?? []).some((r) => most(r.allocated_bytes) > 0) ? "allocated_bytes" : "host_bytes";
  const full = [...(report.memory_steps ?? [])].sort((a, b) => most(b[key]) - most(a[key]))[0];
  if (!full || full.step.length < 2 || !most(full[key])) return null;
  const [width, height, from, base] = [560, 150, 66, 120];
  const first = full.step[0], last = full.step.at(-1), top = Math.max(most(full[key]), most(full.reserved_bytes));
  const x = (step) => from + ((width - from - 6) * (step - first)) / (last - first || 1);
  const y = (bytes) => base - ((base - 10) * bytes) / top;
  const line = (values) => values.map((v, i) => [full.step[i], v]).filter(([, v]) => known(v)).map(([s, v]) => `${x(s).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  const where = key === "host_bytes" ? "of the process" : "on the device";
  const chart = picture(width, height, `Memory of rank ${full.rank} ${where}, steps ${first} to ${last}, at most ${bytesText(top)}`);
  for (const part of [0, 1]) {
    chart.append(svg("line", { x1: from, x2: width, y1: y(top * part), y2: y(top * part), class: "grid" }),
      svg("text", { x: from - 8, y: y(top * part) + 4, class: "axis end" }, bytesText(top * part)));
  }
  chart.append(svg("polyline", { points: line(full[key]), fill: "none", stroke: "var(--forward)", "stroke-width": 2 }));
  if (key === "allocated_bytes" && most(full.reserved_bytes)) chart.append(svg("polyline", { points: line(full.reserved_bytes), class: "dashed" }));
  chart.append(svg("text", { x: x(first), y: base + 18, class: "axis" }, `step ${first}`), svg("text", { x: x(last), y: base + 18, class: "axis end" }, `step ${last}`));
  return el("div", {}, el("h3", {}, `Rank ${full.rank} ${where}, step by step`), chart);
}
