// Memory of the ranks, and of the fullest one over the window.

const MEMORY_COLUMNS = [
  "rank", "peak_allocated_bytes", "peak_reserved_bytes", "device_total_bytes", "cache_bytes", "parameter_bytes", "host_peak_bytes",
  "allocator_calls",
];
const MEMORY_COLOURS = ["forward", "input", "copy", "transfer", "optimizer", "host", "wait", "unknown"];

function memory(report, shown) {
  const view = report.memory;
  const more = [shown.memory_peak, shown.memory_steps, shown.memory_run].filter(Boolean);
  if (!view || !view.ranks.length) return more.length ? pictureSection("memory", "Memory", more) : null;
  const fullest = view.ranks.find((r) => r.rank === view.fullest_rank) || view.ranks[0];
  const chart = fullest.timeline && el("div", {}, el("h3", {}, `Rank ${fullest.rank}, the fullest`), memoryChart(fullest));
  const used = MEMORY_COLUMNS.filter((c) => view.ranks.some((r) => known(r[c])));
  const column = (c) => ({ title: titleOf(c), get: (r) => r[c], show: (v) => valueText(c, v), number: true });
  const table = sortedTable("memory of ranks", view.ranks, used.map(column));
  const box = panel("memory", "Memory", el("div", { class: "halves" }, chart, table));
  const growing = view.ranks.filter((r) => r.growth?.leaks || r.host_growth?.leaks).map((r) => r.rank);
  if (more.length) box.append(el("div", { class: "drawings" }, more.map((d) => drawn(d))));
  if (growing.length) box.append(el("p", { class: "warning" }, `Memory grows from step to step on rank ${growing.join(", ")}.`));
  return box;
}

function memoryChart(rank) {
  const line = rank.timeline;
  // What stays lies below what comes and goes.
  const kinds = line.by_category ? Object.entries(line.by_category).reverse() : [["allocated", line.allocated_bytes]];
  const series = kinds.filter(([, values]) => values.some((v) => v > 0));
  const [width, height, from, base] = [560, 220, 66, 190];
  const first = line.time_ms[0], last = line.time_ms.at(-1);
  const used = Math.max(...line.allocated_bytes, ...(line.reserved_bytes || [0]), 1);
  // The device's size is drawn where the memory comes near it; far above, it would only flatten the rest.
  const limit = known(rank.device_total_bytes) && rank.device_total_bytes < 2 * used ? rank.device_total_bytes : null;
  const unit = byteUnit(Math.max(used, limit ?? 0)), ticks = niceTicks(Math.max(used, limit ?? 0), unit), most = ticks.at(-1) ?? used;
  const x = (t) => from + ((width - from - 6) * (t - first)) / (last - first || 1);
  const y = (b) => base - ((base - 10) * b) / most;
  const chart = picture(width, height, `Memory of rank ${rank.rank} over the window, at most ${bytesText(used)}`);
  for (const bytes of ticks) {
    chart.append(svg("line", { x1: from, x2: width, y1: y(bytes), y2: y(bytes), class: "grid" }),
      svg("text", { x: from - 8, y: y(bytes) + 4, class: "axis end" }, byteTick(bytes, unit)));
  }
  // Memory stays what it is until the next event.
  const at = (i, v) => `${x(line.time_ms[i]).toFixed(1)},${y(v).toFixed(1)}`;
  const points = (values) => values.flatMap((v, i) => (i && values[i - 1] !== v ? [at(i, values[i - 1]), at(i, v)] : [at(i, v)]));
  const colourOf = (k) => MEMORY_COLOURS[k % MEMORY_COLOURS.length];
  let below = line.time_ms.map(() => 0);
  series.forEach(([name, values], k) => {
    const top = values.map((v, i) => below[i] + v);
    const outline = [...points(top), ...points(below).reverse()].join(" ");
    chart.append(svg("polygon", { points: outline, fill: `var(--${colourOf(k)})` }, svg("title", {}, words(name))));
    below = top;
  });
  if (line.reserved_bytes) chart.append(svg("polyline", { points: points(line.reserved_bytes).join(" "), class: "dashed" }));
  if (limit) chart.append(svg("line", { x1: from, x2: width, y1: y(limit), y2: y(limit), class: "limit" }));
  [{ anchor: "", part: 0 }, { anchor: "middle", part: 0.5 }, { anchor: "end", part: 1 }].forEach(({ anchor, part }) => {
    const text = timeText((last - first) * part);
    chart.append(svg("text", { x: x(first + (last - first) * part), y: base + 18, class: `axis ${anchor}` }, text));
  });
  const entries = series.map(([name], k) => [colourOf(k), words(name)]);
  if (line.reserved_bytes) entries.push(["quiet", "reserved (dashed)"]);
  if (limit) entries.push(["high", "size of the device"]);
  return el("div", {}, chart, legend(entries));
}
