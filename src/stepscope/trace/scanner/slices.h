/* Begins and ends of slices in Perfetto traces, paired as they come.
 *
 * Most writers put them in the order of time: an end belongs to the last open begin of its track. torch writes all
 * begins of a kind and then their ends in the same order, where slices that touch would be paired wrongly: a run of
 * begins and the run of as many ends behind it, which fit each other in this order but run against time, are paired so.
 * The host pairs what is left, which are tracks whose times run backwards, after sorting.
 *
 * The duration of a slice goes to its row where that is still here. All else goes to the host as marks. */
#pragma once
#include "columns.h"

enum mark_kind { DURATION = -1, CLOCK = -2, COMPRESSED = -3, LOST_PACKETS = -4 };

struct mark {
    i64 ns;
    u32 row;   /* of the slice, or the one in front of which an end stands; counted from the first of the file */
    i32 track; /* of an end that has no begin yet, else what the mark is */
};

static struct marks { struct mark *of; u32 count, room; }
    marks,                /* for the host */
    run_begins, run_ends, /* the begins since the last end, and the ends since */
    open_slices,          /* begins; `track` is the number + 1 of the one below */
    tracks;               /* when the last was, INT64_MAX once time ran backwards; `row`: open slice, number + 1 */
static int runs_back;     /* whether time runs backwards in the run */
static i64 run_ns;        /* of the last begin or end */
static u32 first_row;     /* how many rows of the file the host has */

/* Make room for twice as many marks; returns 0 when there is no memory left. */
NOINLINE int grow_marks(struct marks *to) {
    u32 room = to->room ? 2 * to->room : 1 << 10;
    struct mark *fresh = enlarge(to->of, to->count * sizeof *fresh, (u64)room * sizeof *fresh);
    if (!fresh) { exhausted = 1; return 0; }
    *to = (struct marks){fresh, to->count, room};
    return 1;
}

INLINE void add_mark(struct marks *to, i64 ns, u32 row, i32 track) {
    if (UNLIKELY(to->count == to->room) && !grow_marks(to)) return;
    struct mark *m = &to->of[to->count++];
    m->ns = ns;
    m->row = row;
    m->track = track;
}

INLINE void end_slice(const struct mark *begin, i64 end_ns) {
    i64 ns = (i64)((u64)end_ns - (u64)begin->ns);
    if (LIKELY(begin->row >= first_row)) col_dur[begin->row - first_row] = ns;
    else add_mark(&marks, ns, begin->row, DURATION);
}

/* Return the track of a begin or an end, 0 if its times run backwards. */
INLINE struct mark *ordered_track(const struct mark *m) {
    struct mark *t = &tracks.of[m->track];
    t->ns = UNLIKELY(runs_back || m->ns < t->ns) ? INT64_MAX : m->ns;
    return LIKELY(t->ns != INT64_MAX) ? t : 0;
}

static void open_slice(const struct mark *m) {
    struct mark *t = ordered_track(m);
    if (UNLIKELY(!t)) return;
    add_mark(&open_slices, m->ns, m->row, (i32)t->row);
    t->row = open_slices.count;
}

static void close_slice(const struct mark *m) {
    struct mark *t = ordered_track(m);
    if (UNLIKELY(!t || !t->row)) { add_mark(&marks, m->ns, m->row, m->track); return; }
    const struct mark *s = &open_slices.of[t->row - 1];
    end_slice(s, m->ns);
    if (t->row == open_slices.count) open_slices.count--;
    t->row = (u32)s->track;
}

/* Pair the ends of the run, with its begins if they fit each other, else with the last open ones of their tracks. */
static void close_run(int fits) {
    const struct marks ends = run_ends;
    if (fits && ends.count == run_begins.count && (ends.count == 1 || runs_back)) {
        if (!marks.count) { run_ends = marks; marks = (struct marks){ends.of, 0, ends.room}; } /* in place of the ends */
        for (u32 i = 0; i < ends.count; i++) end_slice(&run_begins.of[i], ends.of[i].ns);
    } else {
        for (u32 i = 0; runs_back && i < run_begins.count; i++) ordered_track(&run_begins.of[i]);
        for (u32 i = 0; runs_back && i < ends.count; i++) ordered_track(&ends.of[i]);
        for (u32 i = 0; i < run_begins.count; i++) open_slice(&run_begins.of[i]);
        for (u32 i = 0; i < ends.count; i++) close_slice(&ends.of[i]);
    }
    run_begins.count = run_ends.count = 0;
    runs_back = 0;
}

static void note_begin(i32 track, i64 ns) {
    if (run_ends.count) close_run(1);
    runs_back |= run_begins.count && ns < run_ns;
    run_ns = ns;
    add_mark(&run_begins, ns, first_row + rows, track);
}

static void note_end(i32 track, i64 ns) {
    const struct mark *begin = run_begins.of + run_ends.count;
    runs_back |= run_begins.count && ns < run_ns;
    run_ns = ns;
    add_mark(&run_ends, ns, first_row + rows, track);
    if (run_ends.count > run_begins.count || begin->track != track || ns < begin->ns) close_run(0);
}
