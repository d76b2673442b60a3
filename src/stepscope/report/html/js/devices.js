// What the recorder measured beside the traces: the state of the devices and NCCL's log.

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
