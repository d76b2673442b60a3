// One step over all ranks: zoom, pan, search, and the arrivals of a collective.

const TALLEST = 620, TALLEST_COMPACT = 360;
const ZOOM = 1.35;

// The section: which step is shown, and that step.
/** @param {PageData} data */
function timeline(data) {
  const { report, slices, more } = data;
  if (!slices) return null;
  const families = familyOf(report), kernels = new Map((report.kernels ?? []).map((k) => [k.name, k]));
  const box = el("div", {});
  const section = panel("timeline", timelineTitle(slices), box);
  const single = [{ step: slices.step, read: () => slices }, ...more].sort((a, b) => Number(a.step ?? 0) - Number(b.step ?? 0));
  const runs = consecutive(single);
  const steps = runs ? [...single, { step: ALL_STEPS, read: () => joinedSteps(runs.map((s) => s.read())) }] : single;
  /** @type {any} */
  let shown = null, current = null;
  // The typical step, or the first one in which the first finding can be seen.
  const typical = steps.find((s) => s.step === slices.step) ?? steps[0], first = firstFix(report);
  const usual = first ? [typical, ...single].find((s) => focusOf(first, s.read(), families)) ?? typical : typical;
  const stepNamed = (step) => steps.find((s) => String(s.step) === String(step)) ?? usual;
  function open(step) {
    current = step;
    const chosen = step.read();
    const focus = step === usual && first ? () => focusOf(first, chosen, families) : () => null;
    shown = oneStep(chosen, families, kernels, steps.length > 1 ? picker(steps, step.step, pick) : null, focus);
    byTitle(section).textContent = timelineTitle(chosen);
    box.replaceChildren(...shown.parts);
    if (section.isConnected) shown.draw();
  }
  // Another step has other slices at other times: what was in view of this one says nothing of it.
  function pick(step) {
    const wanted = stepNamed(step);
    state.set({ step: wanted === usual ? null : String(wanted.step), from: null, to: null, slice: null }, { push: true });
    open(wanted);
  }
  open(stepNamed(state.get("step")));
  state.onChange(() => {
    const wanted = stepNamed(state.get("step"));
    wanted === current ? shown.restore() : open(wanted);
  });
  document.addEventListener("show-rank", (e) => shown.showRank(e.detail));
  document.addEventListener("show-finding", (e) => {
    shown.showFocus(focusOf(e.detail, stepNamed(state.get("step")).read(), families));
    jump("timeline");
  });
  document.addEventListener("show-step", (e) => { pick(e.detail); jump("timeline"); });
  redrawn(() => shown.draw());
  return section;
}

const ALL_STEPS = "all";

// The longest run of steps that follow each other, null where no two do.
function consecutive(steps) {
  let best = [], run = [];
  for (const s of steps) {
    run = run.length && s.step === run[run.length - 1].step + 1 ? [...run, s] : [s];
    if (run.length > best.length) best = run;
  }
  return best.length > 1 ? best : null;
}

// Several steps on one axis: what began before a step is drawn in the step before it.
/** @param {Slices[]} list @returns {Slices} */
function joinedSteps(list) {
  const [first] = list, rows = [];
  const names = [], launches = [], what = [], last = [];
  for (const [k, s] of list.entries()) {
    const shift = s.origin - first.origin, base = [names.length, launches.length, what.length];
    names.push(...s.names); launches.push(...s.launches); what.push(...s.matched.what); last.push(...s.matched.last);
    for (let i = 0; i < s.start.length; i++) {
      if (k && s.start[i] < 0) continue;
      const rank = first.ranks.indexOf(s.ranks[s.rank[i]]);
      if (rank >= 0) rows.push([rank, s.kind[i], s.start[i] + shift, s.dur[i], s.wait[i], s.name[i] + base[0], s.match[i] < 0 ? -1 : s.match[i] + base[2], s.launch[i] < 0 ? -1 : s.launch[i] + base[1], s.delay[i]]);
    }
  }
  rows.sort((a, b) => a[0] - b[0] || LANE_OF_KIND[a[1]] - LANE_OF_KIND[b[1]] || a[2] - b[2]);
  const column = (c) => Float64Array.from(rows, (row) => row[c]), end = list[list.length - 1];
  return {
    step: `${first.step} to ${end.step}`, ranks: first.ranks, span: end.origin - first.origin + end.span, origin: first.origin, names, launches, notes: first.notes, rounded: first.rounded,
    rank: column(0), kind: column(1), start: column(2), dur: column(3), wait: column(4), name: column(5), match: column(6), launch: column(7), delay: column(8),
    matched: { what, last: Float64Array.from(last) },
  };
}

const timeKept = (ms) => String(Number(ms.toFixed(6)));
const byTitle = (section) => section.querySelector("h2");
const picker = (steps, step, pick) => {
  const box = select("step", steps.map((s) => [s.step, s.step === ALL_STEPS ? "all in one" : String(s.step)]), pick);
  box.querySelector("select").value = String(step);
  box.querySelector("select").id = "step-picker";
  return box;
};

/** @param {Slices} slices @param {Map<string, string>} families @param {Map<string, any>} kernels @param {HTMLElement | null} steps @param {() => Focus | null} focus */
function oneStep(slices, families, kernels, steps, focus) {
  const rows = timelineRows(slices);
  const members = membersOf(slices);
  const lanes = LANES.map((_, lane) => lane).filter((lane) => rows.some((row) => row.lanes[lane].to > row.lanes[lane].from));
  /** @type {View} */
  const view = {
    t0: 0, t1: slices.span, top: 0, width: 0, height: 0, lanes, laneHeight: rows.length === 1 ? 22 : rows.length <= 8 ? 16 : rows.length <= 24 ? 9 : 4,
    marks: null, match: null, cursor: null, rank: null, arrows: false, range: null,
  };
  const canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": timelineLabel(slices), "aria-describedby": "timeline-help" });
  const spacer = el("div", { class: "spacer" });
  const box = el("div", { class: "canvas-box scroller" }, canvas, spacer);
  const said = el("p", { class: "said", "aria-live": "polite" });
  const arrivals = el("div", { class: "arrivals" }), detail = el("div", { class: "detail" }), sums = el("div", { class: "sums" });
  let waiting = false;
  /** @type {number | null} */
  let rowToShow = null;
  /** @type {boolean | null} */
  let compact = null;

  function draw() {
    if (!box.clientWidth) return;
    const begin = performance.now();
    const high = rowHeight(view), whole = rows.length * high + AXIS, middle = (view.top + (view.height - AXIS) / 2) / high - 0.5;
    const wasCompact = compact;
    compact = Boolean(box.closest(".compact"));
    // Another tab has taken the picture, which scrolls it to the top: the row in the middle stays there.
    if (wasCompact !== null && wasCompact !== compact) rowToShow ??= rowOf(view.rank)?.index ?? middle;
    view.height = Math.min(compact ? TALLEST_COMPACT : TALLEST, whole);
    box.style.height = canvas.style.height = `${view.height}px`;
    spacer.style.height = `${Math.max(0, whole - view.height)}px`;
    view.width = Math.max(200, box.clientWidth); // the heights decide whether there is a scrollbar
    if (rowToShow !== null) box.scrollTop = (rowToShow + 0.5) * high - (view.height - AXIS) / 2;
    rowToShow = null;
    view.top = box.scrollTop;
    drawTimeline(canvas, slices, rows, members, view);
    map.draw();
    canvas.dataset.drawMs = (performance.now() - begin).toFixed(1);
  }
  function soon() {
    if (waiting || !box.isConnected) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }
  function show(t0, t1) {
    bound(t0, t1);
    const whole = view.t0 === 0 && view.t1 === slices.span;
    state.set({ from: whole ? null : timeKept(view.t0), to: whole ? null : timeKept(view.t1) });
    soon();
  }
  function bound(t0, t1) {
    const least = slices.rounded / 1e5, span = Math.min(Math.max(t1 - t0, least), slices.span * 1.2);
    const middle = (t0 + t1) / 2, edge = slices.span * 0.1;
    view.t0 = Math.min(Math.max(middle - span / 2, -edge), slices.span + edge - span);
    view.t1 = view.t0 + span;
    canvas.dataset.shownMs = span.toFixed(6);
  }
  const zoom = (factor, at = (view.t0 + view.t1) / 2) => show(at - (at - view.t0) * factor, at + (view.t1 - at) * factor);
  const pan = (share) => show(view.t0 + (view.t1 - view.t0) * share, view.t1 + (view.t1 - view.t0) * share);
  const timeAt = (event) => view.t0 + ((event.clientX - canvas.getBoundingClientRect().left - GUTTER) / (view.width - GUTTER)) * (view.t1 - view.t0);

  function sliceAt(event) {
    const y = event.clientY - canvas.getBoundingClientRect().top + view.top, high = rowHeight(view);
    const row = rows[Math.floor(y / high)], lane = row && row.lanes[lanes[Math.floor((y % high) / view.laneHeight)]];
    if (!lane || !lane.until) return null;
    const t = timeAt(event), slack = (2 * (view.t1 - view.t0)) / view.width;
    let best = null;
    for (let i = firstVisible(lane, t - slack); i < lane.to && slices.start[i] <= t + slack; i++) {
      if (best === null || Math.abs(slices.start[i] + slices.dur[i] / 2 - t) < Math.abs(slices.start[best] + slices.dur[best] / 2 - t)) best = i;
    }
    return best;
  }
  function choose(i) {
    state.set({ slice: i === null ? null : String(i) });
    point(i);
  }
  function point(i) {
    view.cursor = i;
    view.match = i !== null && slices.match[i] >= 0 ? slices.match[i] : null;
    said.textContent = i === null ? "" : [slices.names[slices.name[i]], ...sliceLines(slices, i)].join(" · ");
    detail.replaceChildren(...(i === null || slices.launch[i] < 0 ? [] : [sliceDetail(slices, i, kernels, markName)]));
    arrivals.replaceChildren(...(view.match === null ? [] : [arrivalTable(slices, members.get(view.match), view.match)]));
    soon();
  }
  function markName(name) {
    find.value = slices.names[name].slice(0, 40);
    state.set({ find: find.value });
    mark((i) => slices.name[i] === name);
  }
  function sumOver(t0, t1) {
    view.range = [t0, t1];
    sums.replaceChildren(rangeSums(slices, rows, t0, t1, () => show(t0, t1)));
    soon();
  }
  // Brings a slice into view: the time around it, wide enough to be seen, and its rank.
  function reveal(i) {
    const [start, dur] = [slices.start[i], slices.dur[i]], span = view.t1 - view.t0;
    if (dur < (6 * span) / view.width) show(start - 60 * Math.max(dur, 1e-4), start + 60 * Math.max(dur, 1e-4));
    else if (start < view.t0 || start + dur > view.t1) show(start + dur / 2 - span / 2, start + dur / 2 + span / 2);
    const y = slices.rank[i] * rowHeight(view);
    if (y < view.top || y + rowHeight(view) > view.top + view.height - AXIS) box.scrollTop = y - view.height / 2;
    choose(i);
  }
  function mark(marks) {
    view.marks = marks;
    view.match = null;
    let count = 0, total = 0;
    if (marks) for (let i = 0; i < slices.name.length; i++) if (marks(i)) { count++; total += slices.dur[i]; }
    found.textContent = marks ? `${countText(count)} slices, ${timeText(total / slices.ranks.length)} per rank` : "";
    soon();
  }
  function search(text) {
    state.set({ find: text });
    searchFor(text);
  }
  function searchFor(text) {
    find.value = text;
    const wanted = text.trim().toLowerCase();
    const hits = slices.names.map((name) => name.toLowerCase().includes(wanted) || (families.get(name) ?? "").includes(wanted));
    mark(wanted ? (i) => hits[slices.name[i]] : null);
  }
  const rowOf = (rank) => rows.find((r) => r.rank === rank);
  // What a finding is about: marked, and the time around it in view. Without it the whole step.
  function showFocus(wanted) {
    unmark();
    if (!wanted) return show(0, slices.span);
    mark(wanted.marks);
    if (wanted.rank !== null) view.rank = wanted.rank;
    rowToShow = wanted.row;
    bound(wanted.from, wanted.to);
    said.textContent = wanted.said;
    return soon();
  }
  function showRank(rank) {
    state.set({ rank: String(rank) }, { push: true });
    markRank(rank);
    jump("timeline");
  }
  function markRank(rank) {
    view.rank = rank;
    const row = rowOf(rank);
    said.textContent = row ? `rank ${rank} is marked` : `rank ${rank} is not among the ranks drawn here`;
    if (row) rowToShow = row.index;
    soon();
  }
  function clear() {
    state.set({ rank: null, find: null, slice: null });
    unmark();
  }
  function unmark() {
    view.rank = view.range = null;
    sums.replaceChildren();
    find.value = "";
    mark(null);
    point(null);
  }
  // What the address says of this step: anything that it has not is ignored.
  function restore() {
    const [from, to, rank, slice] = ["from", "to", "rank", "slice"].map(state.number);
    const text = (state.get("find") ?? "").slice(0, 200);
    unmark();
    if (from !== null && to !== null && from < to) bound(from, to);
    else bound(0, slices.span);
    if ([from, to, rank, slice].every((v) => v === null) && !text) showFocus(focus());
    if (text) searchFor(text);
    if (rank !== null && slices.ranks.includes(rank)) markRank(rank);
    if (slice !== null && Number.isInteger(slice) && slice >= 0 && slice < slices.start.length) point(slice);
    soon();
  }
  const found = el("output", { class: "quiet", id: "found" });
  const slider = el("input", { type: "range", min: 2, max: 24, value: view.laneHeight });
  slider.addEventListener("input", () => { view.laneHeight = Number(slider.value); soon(); });
  const button = (text, run) => el("button", { type: "button", on: { click: run } }, text);
  const allArrows = el("input", { type: "checkbox", on: { change: (e) => { view.arrows = e.target.checked; soon(); } } });
  const find = el("input", { id: "find", type: "search", placeholder: "e.g. nccl, gemm, flash", "aria-describedby": "found", on: { input: (e) => search(e.target.value) } });
  const control = { zoom, pan, show, sliceAt, choose, reveal, clear, timeAt, sumOver, view, slices, rows, soon };
  const map = minimap(slices, rows, control);
  listenToPointer(canvas, box, control);
  listenToKeys(canvas, box, find, control);
  const controls = el("div", { class: "controls" }, steps,
    el("label", {}, "find ", find), found, el("label", {}, "row height ", slider),
    button("zoom in", () => zoom(1 / ZOOM)), button("zoom out", () => zoom(ZOOM)), button("show all", () => show(0, slices.span)),
    button("sums in view", () => sumOver(view.t0, view.t1)),
    members.size ? el("label", {}, allArrows, " all arrows") : null);
  const help = el("p", { class: "quiet", id: "timeline-help" }, `${HELP}${members.size ? HELP_WITH_OTHERS : ""}. Escape clears.`);
  restore();
  return { parts: [controls, help, box, map.canvas, legend(usedKinds(slices)), said, detail, sums, arrivals], draw, restore, showRank, showFocus };
}

const HELP = "Drag to pan, ctrl + wheel or W and S to zoom, A and D to move, Shift + drag for the sums of a range (R: of what is in view), . and , for the next slice, N for the next match. " +
  "A click on a kernel shows its launch";
const HELP_WITH_OTHERS = ", one on a collective lists its arrivals: arrows point from the last rank to those that waited";

function timelineTitle(slices) {
  const what = slices.step === null ? "The window" : `Step${typeof slices.step === "string" ? "s" : ""} ${slices.step}`;
  return `${what}${slices.ranks.length === 1 ? "" : `, ${slices.ranks.length} ranks`}, profiled time`;
}

function usedKinds(slices) {
  const isUsed = (kind, code) => (kind === "wait" ? slices.wait.some((w) => w > 0) : slices.kind.includes(code));
  return [...KINDS.filter(isUsed).map((kind) => [kind, NAMES.kinds[kind]]), ["selected", "marked by the finding or the search"]];
}

// Kernels by their family: no kernel of an H200 has gemm in its name.
const familyOf = (report) => new Map((report.kernels ?? []).map((k) => [k.name, words(k.family ?? "").toLowerCase()]));

const timelineLabel = (s) => `What ran on ${s.ranks.length} ranks during one step of ${timeText(s.span)}: ${s.start.length} slices. ` +
  "The tables below hold the same times in sum.";

function sliceLines(slices, i) {
  const lines = [
    `rank ${slices.ranks[slices.rank[i]]} · ${NAMES.kinds[KINDS[slices.kind[i]]]}`,
    `start ${timeText(slices.start[i])} · duration ${timeText(slices.dur[i])}`,
  ];
  if (slices.wait[i] > 0) lines.push(`waited ${timeText(slices.wait[i])}, moved data ${timeText(slices.dur[i] - slices.wait[i])}`);
  const m = slices.match[i];
  if (m >= 0) lines.push(slices.matched.what[m], `last to arrive: rank ${slices.matched.last[m]}`);
  const by = slices.launches[slices.launch[i]];
  if (by) lines.push([by.operator, by.module, by.line].filter(known).join(" · "));
  return lines.filter(Boolean);
}

function arrivalTable(slices, list, match) {
  const first = Math.min(...list.map((i) => slices.start[i]));
  return el("div", {}, el("h3", {}, `Arrivals at ${slices.matched.what[match]}`),
    table("arrivals", list, [
      { title: "rank", key: (i) => slices.ranks[slices.rank[i]], unit: "rank" },
      { title: "arrived after the first", key: (i) => slices.start[i] - first, unit: "ms", bar: true },
      { title: "waited", key: (i) => slices.wait[i], unit: "ms" },
      { title: "transfer", key: (i) => slices.dur[i] - slices.wait[i], unit: "ms" },
    ]));
}
