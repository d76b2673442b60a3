/* Call-stack parents of events sorted by (thread, start, longest first), with a real stack.
 *
 * A row's parent is the innermost earlier row of its thread that encloses it: starts no later and ends no earlier.
 * Where A and B cross (A starts first, ends inside B), B is no child of A, and A is never again a parent: whatever
 * starts later and lies in A lies in B too. So A leaves the stack for good, and the whole pass is linear. */
#pragma once
#include "memory.h"

enum { CHUNK_ROWS = 1 << 15 };

struct frame {
    i64 start, end, row;
};

static i64 *chunk; /* thread, start, end and parent, CHUNK_ROWS each */
static struct frame *frames;
static u32 num_frames, max_frames;
static i64 current_thread;

EXPORT(stack_chunk) i64 *stack_chunk(void) {
    if (!chunk) chunk = allocate((u64)CHUNK_ROWS * 4 * 8);
    num_frames = 0;
    return chunk;
}

static int push_frame(i64 start, i64 end, i64 row) {
    if (num_frames == max_frames) {
        u32 more = max_frames ? max_frames * 2 : 1024;
        frames = enlarge(frames, num_frames * sizeof *frames, (u64)more * sizeof *frames);
        if (!frames) return 0;
        max_frames = more;
    }
    frames[num_frames++] = (struct frame){start, end, row};
    return 1;
}

static int encloses(const struct frame *f, i64 start, i64 end) {
    return end <= f->end && (start < f->end || start == f->start);
}

/* Fill in the parents of the next `count` rows, the first of which is row `first`. Returns 0 when memory is out. */
EXPORT(stack_parents) int stack_parents(u32 count, i64 first) {
    const i64 *thread = chunk, *start = chunk + CHUNK_ROWS, *end = chunk + 2 * CHUNK_ROWS;
    i64 *parent = chunk + 3 * CHUNK_ROWS;
    for (u32 i = 0; i < count; i++) {
        if (thread[i] != current_thread) num_frames = 0;
        current_thread = thread[i];
        while (num_frames && !encloses(&frames[num_frames - 1], start[i], end[i])) num_frames--;
        parent[i] = num_frames ? frames[num_frames - 1].row : -1;
        if (!push_frame(start[i], end[i], first + i)) return 0;
    }
    return 1;
}
