/* Trace events to columns: a small parser for one thing, run in a sandbox because traces are untrusted input.
 *
 * The host copies a block of the file to `input_buffer`, calls `parse` until it has nothing more to say, and copies
 * the filled columns out after every call. What a block leaves unread (`consumed` to its end) is the start of the
 * next. Parsing is strict and fast; an event that is no JSON is read once more leniently, and if that fails too it
 * is dropped and the next plausible event is searched. docs/decisions has the reasons. */
#include "call_stack.h"
#include "packets.h"
#include "waits.h"

enum parse_flags { FINAL = 1, TOP_ARRAY = 2, LOST = 4, NEW_ROWS = 8, PACKETS = 16 };

static struct result {
    u32 rows, consumed, lost, cut;
    struct counts counts;
    u32 first_bad, has_bad;
    u32 num_texts;
    const struct text *texts;
    u32 holds_events;
    u32 num_marks;
    const struct mark *marks;
} result;

/* What `parse` is asked: arguments of a call cost the host more than the call itself. */
static struct request {
    u32 length, from, flags, base;
} request;

/* Return a new place for blocks of up to `bytes`, with the first `kept` bytes of the old one; 0 without memory. */
EXPORT(input_buffer) u8 *input_buffer(u32 bytes, u32 kept) {
    return input = enlarge(input, kept, (u64)bytes + PADDING);
}

static struct layout {
    const void *columns[8];
    const struct result *result;
    const u32 *arg_counts, *arg_rows;
    const i64 *arg_values;
    const struct request *request;
} layout;

/* Make room for everything; returns where the host finds what, or 0 without memory. */
EXPORT(setup) const struct layout *setup(void) {
    if (!grow_table() || !allocate_columns() || !allocate_shapes()) return 0;
    layout = (struct layout){{col_ph, col_cat, col_name, col_pid, col_tid, col_ts, col_dur, col_offset},
                             &result, arg_counts, arg_rows, arg_values, &request};
    return &layout;
}

/* Take `count` keys from the input buffer: length, column and kind, a byte each, then the text. */
EXPORT(configure_keys) int configure_keys(u32 count) {
    for (const u8 *p = input; count--; p += 3 + p[0])
        if (!add_key(p + 3, p[0], p[1], (enum arg_kind)p[2])) return 0;
    return 1;
}

/* Read events from byte `from` of the `length` bytes in the input buffer, as `request` says, behind the rows that are
 * there unless those were copied (NEW_ROWS); their offsets count from `base` bytes before the buffer. Returns a status;
 * the rest is in `result`: rows filled, bytes consumed, whether reading is lost (pass it on as LOST), whether an event
 * was cut off. */
EXPORT(parse) int parse(void) {
    const u32 length = request.length, from = request.from, flags = request.flags;
    const u8 *p = input + from;
    enum status status = NEED_MORE;
    int lost = (flags & LOST) != 0;
    block_end = input + length;
    is_final = (flags & FINAL) != 0;
    is_top_array = (flags & TOP_ARRAY) != 0;
    __builtin_memset((u8 *)block_end, '"', PADDING);
    __builtin_memset(&result, 0, sizeof result);
    __builtin_memset(&counts, 0, sizeof counts);
    first_offset = request.base;
    if (flags & NEW_ROWS) {
        first_row += rows;
        rows = marks.count = 0;
        __builtin_memset(arg_counts, 0, sizeof arg_counts);
    }
    cut = 0;
    first_bad = 0;
    holds_events = 0;
    waste = 0;
    max_waste = WASTE_FREE + (u64)WASTE_FACTOR * (length - from);

    if (flags & PACKETS) {
        status = sequences || allocate_packets() ? read_packets(&p, &lost) : EXHAUSTED;
    } else for (;;) {
        if (UNLIKELY(exhausted)) { status = EXHAUSTED; break; }
        if (UNLIKELY(lost)) {
            p = find_event(p, &lost, &status);
            if (lost || status == ARRAY_END) break;
            continue;
        }
        if (UNLIKELY(rows == ROW_CAPACITY)) { status = ROWS_FULL; break; }
        p = skip_space(p);
        while (*p == ',') p = skip_space(p + 1);
        if (p >= block_end) { p = block_end; break; }
        if (LIKELY(*p == '{')) {
            const u8 *next = read_known(p, block_end, offset_of(p));
            if (LIKELY(next != 0)) { p = next; continue; }
            const u32 row = rows, bad = counts.bad_args + counts.recovered;
            next = read_event(p, 0);
            if (LIKELY(next != 0)) {
                if (rows > row && counts.bad_args + counts.recovered == bad) learn_event(p, next, block_end);
                p = next;
                continue;
            }
            if (failure == INCOMPLETE && !is_final) break;
            if (failure == INCOMPLETE) cut = 1;
            else counts.malformed++;
            note_bad(p);
            p++;
            lost = 1;
            continue;
        }
        int ends = *p == ']' ? ends_array(p, 0) : 0;
        if (ends < 0) break;
        if (ends) { status = ARRAY_END; p++; break; }
        counts.malformed++;
        note_bad(p);
        p++;
        lost = *(p - 1) != ']';
    }
    result.rows = rows;
    result.consumed = (u32)(p - input);
    result.lost = (u32)lost;
    result.has_bad = first_bad != 0;
    if (first_bad) result.first_bad = (u32)(first_bad - input);
    result.cut = (u32)cut;
    result.counts = counts;
    result.num_texts = num_texts;
    result.texts = texts;
    result.holds_events = holds_events;
    result.num_marks = marks.count;
    result.marks = marks.of;
    return status;
}
