// The step of each side as lanes under each other, on one scale: what ran on rank 0, and on the rank that is worst.

const LANE_HEIGHT = 15, SIDE_GAP = 12, LANES_FROM = 66;

function laneRows(side) {
  const used = LANES.map((_, lane) => lane).filter((lane) => side.slices.some(([kind]) => LANE_OF_KIND[kind] === lane));
  return used.map((lane) => ({ lane, slices: side.slices.filter(([kind]) => LANE_OF_KIND[kind] === lane) }));
}

// One rank: the lanes of A above those of B. `span` is the longer step, in ms.
const rankLanes = (rank, sideNames) => sized((width) => drawnLanes(rank, sideNames, width));
function drawnLanes(rank, sideNames, width) {
  const sides = rank.sides.map((side) => ({ ...side, rows: laneRows(side) }));
  const span = Math.max(...sides.map((s) => s.span_ms), 1e-6);
  const x = (ms) => LANES_FROM + ((width - LANES_FROM - 4) * ms) / span;
  const unit = timeUnit(span), ticks = niceTicks(span, unit).filter((ms) => ms <= span * 1.001);
  const heights = sides.map((s) => s.rows.length * (LANE_HEIGHT + 2) + SIDE_GAP + 18);
  const height = heights[0] + heights[1] + 22;
  const chart = picture(width, height,
    `Step of rank ${rank.rank} on both sides: A ${timeText(sides[0].span_ms)}, B ${timeText(sides[1].span_ms)}; the table below holds the sums`);
  chart.append(svg("defs", {}, svg("pattern", { id: `hatch-${rank.rank}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("line", { x1: 0, x2: 0, y1: 0, y2: 6, stroke: "var(--panel)", "stroke-width": 3 }))));
  for (const ms of ticks) {
    chart.append(svg("line", { x1: x(ms), x2: x(ms), y1: 0, y2: height - 20, class: "grid" }),
      svg("text", { x: x(ms), y: height - 5, class: `axis ${ms ? (x(ms) > width - 50 ? "end" : "middle") : ""}` }, timeTick(ms, unit)));
  }
  /** @type {{ y: number, row: any, side: any }[]} */
  const places = [];
  let y = 0;
  sides.forEach((side, k) => {
    const title = `${"AB"[k]} · ${sideNames[k]}${known(side.step) ? ` · step ${side.step}` : ""} · ${timeText(side.span_ms)}`;
    chart.append(svg("text", { x: 0, y: y + 12, class: "axis strong" }, shortened(title, Math.floor(width / 7))));
    y += 18;
    for (const row of side.rows) {
      chart.append(svg("text", { x: LANES_FROM - 8, y: y + LANE_HEIGHT - 3, class: "axis end" }, LANES[row.lane]));
      places.push({ y, row, side });
      for (const [kind, d] of lanePaths(row.slices, x, y)) {
        chart.append(svg("path", { d, fill: `var(--${KINDS[kind]})` }), KINDS[kind] === "wait" || KINDS[kind] === "idle" ? svg("path", { d, fill: `url(#hatch-${rank.rank})` }) : null);
      }
      y += LANE_HEIGHT + 2;
    }
    const end = x(side.span_ms);
    chart.append(svg("line", { x1: end, x2: end, y1: y - side.rows.length * (LANE_HEIGHT + 2), y2: y, class: "dashed" }));
    y += SIDE_GAP;
  });
  chart.addEventListener("mousemove", (e) => pointedSlice(e, chart, { width, height, span, places }));
  chart.addEventListener("mouseleave", tip.hide);
  return chart;
}

// The slices of each kind as one path; those that are narrower than a pixel still show.
function lanePaths(slices, x, y) {
  const paths = new Map();
  for (const [kind, start, dur] of slices) {
    const left = x(start / 1000), wide = Math.max(0.6, x((start + dur) / 1000) - left);
    paths.set(kind, `${paths.get(kind) ?? ""}M${left.toFixed(1)} ${y}h${wide.toFixed(1)}v${LANE_HEIGHT}h-${wide.toFixed(1)}z`);
  }
  return paths;
}

function pointedSlice(event, chart, { width, height, span, places }) {
  const box = chart.getBoundingClientRect();
  const left = ((event.clientX - box.left) / box.width) * width, top = ((event.clientY - box.top) / box.height) * height;
  const us = ((left - LANES_FROM) / (width - LANES_FROM - 4)) * span * 1000;
  const place = places.find((p) => top >= p.y && top < p.y + LANE_HEIGHT);
  const slack = (span * 1000) / width;
  const found = place?.row.slices.find(([, start, dur]) => us >= start - slack && us <= start + dur + slack);
  if (!place || !found) {
    tip.hide();
    return;
  }
  const [kind, start, dur, name] = found;
  tip.show(event, place.side.names[name], [KIND_TEXT[KINDS[kind]], `${timeText(dur / 1000)} from ${timeText(start / 1000)}`]);
}

// How long each kind ran on both sides: sums of slices, which may overlap on several streams.
function laneSums(rank) {
  const sums = rank.sides.map((side) => KINDS.map((_, k) => side.slices.reduce((sum, [kind, , dur]) => sum + (kind === k ? dur / 1000 : 0), 0)));
  const rows = KINDS.map((kind, k) => [kind, sums[0][k], sums[1][k]]).filter(([, a, b]) => a || b);
  return plainTable(["in this step", "A", "B", "change"], rows.map(([kind, a, b]) => [KIND_TEXT[kind], timeText(a), timeText(b), signedTime(b - a)]));
}

function lanesPanel(report) {
  if (!report.lanes) return null;
  const names = SIDES.map((side) => (report[side].runs[0]?.name ?? report[side].name));
  const kinds = new Set(report.lanes.ranks.flatMap((r) => r.sides.flatMap((s) => s.slices.map(([kind]) => KINDS[kind]))));
  const left = report.lanes.ranks.reduce((sum, r) => sum + r.sides.reduce((n, s) => n + s.left_out, 0), 0);
  return panel("timelines", "One step of each side, on one scale",
    el("p", { class: "quiet" }, `The step nearest to the median of the first run of each side.${left ? ` The ${countText(left)} shortest slices are left out.` : ""}`),
    report.lanes.ranks.map((rank) => [
      el("h3", {}, `rank ${rank.rank}`, el("span", { class: "quiet" }, ` ${rank.why}`)), rankLanes(rank, names), foldedLater("as a table", () => laneSums(rank)),
    ]).flat(),
    legend(KINDS.filter((kind) => kinds.has(kind)).map((kind) => [kind, KIND_TEXT[kind]])));
}
