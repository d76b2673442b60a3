// What pointer and keys do to the timeline.

function listenToPointer(canvas, box, { zoom, show, sliceAt, choose, timeAt, sumOver, view, slices, soon }) {
  /** @type {{ x: number, t0: number, t1: number, from: number, range: boolean, moved: boolean } | null} */
  let drag = null;
  canvas.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    zoom(e.deltaY > 0 ? ZOOM : 1 / ZOOM, timeAt(e));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (e) => {
    drag = { x: e.clientX, t0: view.t0, t1: view.t1, from: timeAt(e), range: e.shiftKey, moved: false };
    canvas.setPointerCapture(e.pointerId);
  });
  canvas.addEventListener("pointermove", (e) => {
    if (!drag) {
      const i = sliceAt(e);
      return i === null ? tip.hide() : tip.show(e, slices.names[slices.name[i]], sliceLines(slices, i));
    }
    tip.hide();
    const by = e.clientX - drag.x;
    drag.moved ||= Math.abs(by) > 3;
    if (drag.range && drag.moved) {
      view.range = [Math.min(drag.from, timeAt(e)), Math.max(drag.from, timeAt(e))];
      soon();
    }
    if (!drag.range && drag.moved) {
      const shift = (by / (view.width - GUTTER)) * (drag.t1 - drag.t0);
      show(drag.t0 - shift, drag.t1 - shift);
    }
  });
  canvas.addEventListener("pointerup", (e) => {
    if (drag && drag.range && drag.moved) sumOver(Math.min(drag.from, timeAt(e)), Math.max(drag.from, timeAt(e)));
    else if (drag && !drag.moved) choose(sliceAt(e));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", tip.hide);
  box.addEventListener("scroll", soon);
}

function listenToKeys(canvas, box, find, { zoom, pan, show, reveal, clear, sumOver, view, slices, rows }) {
  const go = (i) => i !== null && reveal(i);
  const upDown = (by) => (view.cursor === null ? (box.scrollTop += 40 * by) : go(neighbour(slices, rows, view.cursor, by)));
  const next = (by) => go(followingMark(slices, view, by));
  const keys = {
    w: () => zoom(1 / ZOOM), "+": () => zoom(1 / ZOOM), s: () => zoom(ZOOM), "-": () => zoom(ZOOM), a: () => pan(-0.2), d: () => pan(0.2),
    ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), ArrowUp: () => upDown(-1), ArrowDown: () => upDown(1),
    ".": () => go(following(slices, rows, view, 1)), ",": () => go(following(slices, rows, view, -1)), n: () => next(1), p: () => next(-1),
    Home: () => show(0, slices.span), Escape: clear, r: () => sumOver(view.t0, view.t1),
  };
  canvas.addEventListener("keydown", (e) => {
    const run = keys[e.key.length === 1 ? e.key.toLowerCase() : e.key];
    if (!run || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    run();
  });
  find.addEventListener("keydown", (e) => e.key === "Enter" && next(e.shiftKey ? -1 : 1));
}

// The slice after or before the cursor on its lane; without a cursor the first one in view, of the marked rank if any.
function following(slices, rows, view, by) {
  if (view.cursor !== null) {
    const { from, to } = rows[slices.rank[view.cursor]].lanes[LANE_OF_KIND[slices.kind[view.cursor]]];
    return Math.min(to - 1, Math.max(from, view.cursor + by));
  }
  const row = rows.find((r) => r.rank === view.rank) ?? rows[0];
  const lane = row.lanes.find((l) => l.to > l.from);
  return lane ? Math.min(lane.to - 1, firstVisible(lane, view.t0)) : null;
}

// The slice of the next rank that has this lane, at the same time.
function neighbour(slices, rows, cursor, by) {
  const middle = slices.start[cursor] + slices.dur[cursor] / 2;
  for (let r = slices.rank[cursor] + by; r >= 0 && r < rows.length; r += by) {
    const lane = rows[r].lanes[LANE_OF_KIND[slices.kind[cursor]]];
    if (lane.to > lane.from) return Math.min(lane.to - 1, firstVisible(lane, middle));
  }
  return cursor;
}

// The next marked slice in the order of ranks, lanes and times; around the end to the beginning.
function followingMark(slices, view, by) {
  const num = slices.start.length;
  if (!view.marks) return null;
  for (let k = 1, i = view.cursor ?? (by > 0 ? -1 : num); k <= num; k++) {
    i = (i + by + num) % num;
    if (view.marks(i)) return i;
  }
  return null;
}
