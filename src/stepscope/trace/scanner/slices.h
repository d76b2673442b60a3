/* Begins and ends of slices in Perfetto traces, paired as they come.
 *
 * Most writers put them in the order of time: an end belongs to the last open begin of its track. torch writes all
 * begins of a kind and then their ends in the same order, where slices that touch would be paired wrongly: a run of
 * begins and the run of as many ends behind it, which fit each other in this order but run against time, are paired so.
 * The host pairs what is left of a track whose times run backwards, after sorting.
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

struct marks {
    struct mark *of;
    u32 count, room;
};

static struct marks marks;                /* for the host */
static struct marks run_begins, run_ends; /* the begins since the last end, and the ends since */
static int runs_back;                     /* whether time runs backwards among these */
static i64 run_ns;                        /* of the last of them */
static u32 first_row;                     /* how many rows of the file the host has */

static struct track_state {
    u64 last_ns; /* above the least */
    u32 top;     /* number + 1 of the open slice */
    u32 is_disordered;
} *track_states;
static struct marks open_slices; /* begins; `track` is the number + 1 of the one below it, or of the next free place */
static u32 track_room, free_slice;

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

/* Note that there is a track of this number, one more than the last. */
static void add_track(u32 number) {
    if (number >= track_room) {
        u32 room = track_room ? 2 * track_room : 1 << 8;
        struct track_state *fresh = enlarge(track_states, number * sizeof *fresh, (u64)room * sizeof *fresh);
        if (!fresh) { exhausted = 1; return; }
        track_states = fresh;
        track_room = room;
    }
    track_states[number] = (struct track_state){0};
}

INLINE void end_slice(const struct mark *begin, i64 end_ns) {
    i64 ns = (i64)((u64)end_ns - (u64)begin->ns);
    if (LIKELY(begin->row >= first_row)) col_dur[begin->row - first_row] = ns;
    else add_mark(&marks, ns, begin->row, DURATION);
}

/* Return the state of the track of a begin or an end, 0 if its times run backwards. */
INLINE struct track_state *ordered_track(const struct mark *m) {
    struct track_state *t = &track_states[m->track];
    u64 ns = (u64)m->ns ^ (u64)1 << 63;
    if (UNLIKELY(runs_back || ns < t->last_ns)) t->is_disordered = 1;
    t->last_ns = ns;
    return UNLIKELY(t->is_disordered) ? 0 : t;
}

static void open_slice(const struct mark *m) {
    struct track_state *t = ordered_track(m);
    if (UNLIKELY(!t)) return;
    u32 at = free_slice;
    if (LIKELY(at)) {
        free_slice = (u32)open_slices.of[at - 1].track;
        open_slices.of[at - 1] = (struct mark){m->ns, m->row, (i32)t->top};
    } else {
        add_mark(&open_slices, m->ns, m->row, (i32)t->top);
        at = open_slices.count;
    }
    t->top = at;
}

static void close_slice(const struct mark *m) {
    struct track_state *t = ordered_track(m);
    if (UNLIKELY(!t)) { add_mark(&marks, m->ns, m->row, m->track); return; }
    u32 at = t->top;
    if (!at) return;
    struct mark *s = &open_slices.of[at - 1];
    end_slice(s, m->ns);
    t->top = (u32)s->track;
    s->track = (i32)free_slice;
    free_slice = at;
}

/* Pair the ends of the run with the last open begins of their tracks. */
static void close_run(void) {
    if (UNLIKELY(runs_back)) {
        for (u32 i = 0; i < run_begins.count; i++) ordered_track(&run_begins.of[i]);
        for (u32 i = 0; i < run_ends.count; i++) ordered_track(&run_ends.of[i]);
    }
    for (u32 i = 0; i < run_begins.count; i++) open_slice(&run_begins.of[i]);
    for (u32 i = 0; i < run_ends.count; i++) close_slice(&run_ends.of[i]);
    run_begins.count = run_ends.count = 0;
    runs_back = 0;
}

INLINE void note_begin(i32 track, i64 ns) {
    if (run_ends.count) close_run();
    runs_back |= run_begins.count && ns < run_ns;
    run_ns = ns;
    add_mark(&run_begins, ns, first_row + rows, track);
}

static void note_end(i32 track, i64 ns) {
    const struct mark *begin = run_begins.of + run_ends.count;
    runs_back |= run_begins.count && ns < run_ns;
    run_ns = ns;
    if (LIKELY(run_begins.count == 1 && !run_ends.count && begin->track == track && ns >= begin->ns)) {
        end_slice(begin, ns);
        run_begins.count = runs_back = 0;
        return;
    }
    add_mark(&run_ends, ns, first_row + rows, track);
    if (run_ends.count > run_begins.count || begin->track != track || ns < begin->ns) { close_run(); return; }
    if (run_ends.count < run_begins.count || !runs_back) return;
    for (u32 i = 0; i < run_ends.count; i++) end_slice(&run_begins.of[i], run_ends.of[i].ns);
    run_begins.count = run_ends.count = 0;
    runs_back = 0;
}
