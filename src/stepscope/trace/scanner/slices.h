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

static struct marks marks;              /* for the host */
static struct marks run_begins, run_ends; /* the begins since the last end, and the ends since */
static int runs_back;                   /* whether time runs backwards among these */
static i64 run_ns;                      /* of the last of them */
static u32 first_row;                   /* how many rows of the file the host has */

static struct track_state {
    u64 last_ns; /* above the least */
    u32 top, is_disordered; /* number of the open slice + 1 */
} *track_states;
static struct open_slice { i64 ns; u32 row, below; } *open_slices;
static u32 track_room, open_room, num_open, free_slice;

/* Make room for `count` elements in an array of `size` bytes each; returns 0 when there is no memory left. */
static int make_room(void *array, u32 *room, u32 count, u32 size) {
    if (LIKELY(count <= *room)) return 1;
    u32 more = count < 1 << 10 ? 1 << 10 : 2 * count;
    void *fresh = enlarge(*(void **)array, *room * size, (u64)more * size);
    if (!fresh) { exhausted = 1; return 0; }
    __builtin_memset((u8 *)fresh + *room * size, 0, (more - *room) * size);
    *(void **)array = fresh;
    *room = more;
    return 1;
}

static void add_mark(struct marks *to, i64 ns, u32 row, i32 track) {
    if (make_room(&to->of, &to->room, to->count + 1, sizeof *to->of)) to->of[to->count++] = (struct mark){ns, row, track};
}

INLINE void end_slice(u32 row, i64 start_ns, i64 end_ns) {
    i64 ns = (i64)((u64)end_ns - (u64)start_ns);
    if (LIKELY(row >= first_row)) col_dur[row - first_row] = ns;
    else add_mark(&marks, ns, row, DURATION);
}

static void note_order(const struct mark *m) {
    struct track_state *t = &track_states[m->track];
    u64 ns = (u64)m->ns ^ (u64)1 << 63;
    if (runs_back || ns < t->last_ns) t->is_disordered = 1;
    t->last_ns = ns;
}

static void open_slice(const struct mark *m) {
    struct track_state *t = &track_states[m->track];
    if (t->is_disordered) return;
    u32 at = free_slice;
    if (at) free_slice = open_slices[at - 1].below;
    else if (make_room(&open_slices, &open_room, num_open + 1, sizeof *open_slices)) at = ++num_open;
    else return;
    open_slices[at - 1] = (struct open_slice){m->ns, m->row, t->top};
    t->top = at;
}

static void close_slice(const struct mark *m) {
    struct track_state *t = &track_states[m->track];
    u32 at = t->top;
    if (UNLIKELY(t->is_disordered)) { add_mark(&marks, m->ns, m->row, m->track); return; }
    if (!at) return;
    struct open_slice *s = &open_slices[at - 1];
    end_slice(s->row, s->ns, m->ns);
    t->top = s->below;
    s->below = free_slice;
    free_slice = at;
}

/* Pair the ends of the run with the last open begins of their tracks. */
static void close_run(void) {
    for (u32 i = 0; i < run_begins.count; i++) note_order(&run_begins.of[i]);
    for (u32 i = 0; i < run_ends.count; i++) note_order(&run_ends.of[i]);
    for (u32 i = 0; i < run_begins.count; i++) open_slice(&run_begins.of[i]);
    for (u32 i = 0; i < run_ends.count; i++) close_slice(&run_ends.of[i]);
    run_begins.count = run_ends.count = 0;
    runs_back = 0;
}

static void note_begin(i32 track, i64 ns) {
    if (run_ends.count) close_run();
    runs_back |= run_begins.count && ns < run_ns;
    run_ns = ns;
    if (make_room(&track_states, &track_room, (u32)track + 1, sizeof *track_states))
        add_mark(&run_begins, ns, first_row + rows, track);
}

static void note_end(i32 track, i64 ns) {
    const struct mark *begin = run_begins.of + run_ends.count;
    if (!make_room(&track_states, &track_room, (u32)track + 1, sizeof *track_states)) return;
    add_mark(&run_ends, ns, first_row + rows, track);
    runs_back |= run_begins.count && ns < run_ns;
    run_ns = ns;
    if (run_ends.count > run_begins.count || begin->track != track || ns < begin->ns) { close_run(); return; }
    if (run_ends.count < run_begins.count) return;
    if (run_ends.count > 1 && !runs_back) return;
    for (u32 i = 0; i < run_ends.count; i++) end_slice(run_begins.of[i].row, run_begins.of[i].ns, run_ends.of[i].ns);
    run_begins.count = run_ends.count = 0;
    runs_back = 0;
}
