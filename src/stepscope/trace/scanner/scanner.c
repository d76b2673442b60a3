/* Trace events to columns: a small parser for one thing, run in a sandbox because traces are untrusted input.
 *
 * The host copies a block of the file to `input_buffer`, calls `parse` until it has nothing more to say, and copies
 * the filled columns out after every call. What a block leaves unread (`consumed` to its end) is the start of the
 * next. Parsing is strict and fast; an event that is no JSON is read once more leniently, and if that fails too it
 * is dropped and the next plausible event is searched. docs/decisions has the reasons. */
#include "call_stack.h"
#include "event.h"

enum status { NEED_MORE, ROWS_FULL, ARRAY_END, EXHAUSTED };
enum parse_flags { FINAL = 1, TOP_ARRAY = 2, LOST = 4 };
enum {
    MAX_EVENT = 16 << 20,    /* an event that is not complete after so many bytes is dropped */
    MAX_WAIT = 1 << 16,      /* a bad event waits for so many bytes to find where the next one starts */
    PH_WINDOW = 4096,        /* an event's phase comes within so many bytes */
    WASTE_FREE = 4 << 20,    /* failed attempts may read so much ... */
    WASTE_FACTOR = 8,        /* ... and so many times the block, then they are skipped over: keeps it linear */
};

static struct result {
    u32 rows, consumed, lost, cut;
    struct counts counts;
    u32 first_bad, has_bad;
    u32 num_texts;
    const struct text *texts;
} result;

static u8 *input;
static const u8 *block_end;
static int is_final, is_top_array;
static u64 waste, max_waste;

/* Return a new place for blocks of up to `bytes`, with the first `kept` bytes of the old one; 0 without memory. */
EXPORT(input_buffer) u8 *input_buffer(u32 bytes, u32 kept) {
    return input = enlarge(input, kept, (u64)bytes + PADDING);
}

EXPORT(setup) int setup(void) { return grow_table() && allocate_columns(); }

/* Take `count` keys from the input buffer: length, column and kind, a byte each, then the text. */
EXPORT(configure_keys) int configure_keys(u32 count) {
    for (const u8 *p = input; count--; p += 3 + p[0])
        if (!add_key(p + 3, p[0], p[1], (enum arg_kind)p[2])) return 0;
    return 1;
}

EXPORT(result_at) const struct result *result_at(void) { return &result; }
EXPORT(arg_counts_at) const u32 *arg_counts_at(void) { return arg_counts; }
EXPORT(arg_rows_at) const u32 *arg_rows_at(void) { return arg_rows; }
EXPORT(arg_values_at) const i64 *arg_values_at(void) { return arg_values; }
EXPORT(column_at) const void *column_at(u32 column) {
    const void *columns[] = {col_ph, col_cat, col_name, col_pid, col_tid, col_ts, col_dur, col_offset};
    return columns[column];
}

static void note_bad(const u8 *p) {
    if (result.has_bad) return;
    result.has_bad = 1;
    result.first_bad = (u32)(p - input);
}

static __attribute__((noinline)) const u8 *fields_of(const u8 *p, const u8 *end, struct event *e) {
    return read_fields(p, end, e);
}

/* Return the next brace that a key follows, or the next closing bracket, from `p` on; 0 if there is none. */
static const u8 *next_brace(const u8 *p, const u8 *end, int brackets_too) {
    v128_t other = wasm_u8x16_splat(brackets_too ? ']' : '{');
    while (p < end) {
        v128_t v = wasm_v128_load(p);
        u32 found = wasm_i8x16_bitmask(wasm_v128_or(wasm_i8x16_eq(v, wasm_u8x16_splat('{')), wasm_i8x16_eq(v, other)));
        if (!found) { p += 16; continue; }
        p += __builtin_ctz(found);
        if (p >= end) break;
        if (*p == ']' || *skip_space(p + 1) == '"') return p;
        p++;
    }
    return 0;
}

/* Return the brace of the next event: separated from the one before, `} , { "`, or followed by its phase. */
static const u8 *next_event(const u8 *p, const u8 *end) {
    const u8 *first = p;
    for (p++; (p = next_brace(p, end, 0)); p++) {
        if (load32(skip_space(p + 1)) == WORD('"', 'p', 'h', '"')) return p;
        const u8 *q = p - 1;
        while (q > first && *q <= ' ') q--;
        if (*q != ',') continue;
        for (q--; q > first && *q <= ' '; q--) {}
        if (*q == '}') return p;
    }
    return 0;
}

/* Return whether an event with nothing behind it swallowed all others: damage can open what only the end closes. */
static int holds_event(const u8 *p, const u8 *end) {
    for (p++; (p = next_brace(p, end, 0)); p++)
        if (load32(skip_space(p + 1)) == WORD('"', 'p', 'h', '"')) return 1;
    return 0;
}

/* Read an event with lenient rules, no further than to the start of the next one. */
static const u8 *mend_event(const u8 *p, struct event *e) {
    u8 saved[PADDING];
    const u8 *bound = next_event(p, block_end);
    if (!bound && !is_final) {
        waste += (u64)(block_end - p);
        failure = block_end - p < MAX_WAIT ? INCOMPLETE : SYNTAX;
        failed_at = block_end;
        return 0;
    }
    u8 *limit = (u8 *)(bound ? bound : block_end);
    __builtin_memcpy(saved, limit, PADDING);
    __builtin_memset(limit, '"', PADDING);
    lenient = 1;
    const u8 *next = fields_of(p, limit, e);
    lenient = 0;
    __builtin_memcpy(limit, saved, PADDING);
    if (next) {
        counts.mended++;
        return next;
    }
    waste += (u64)(limit - p);
    if (bound) failure = SYNTAX;
    return 0;
}

static const u8 *refuse_event(const u8 *at, u32 first_text) {
    forget_event(first_text);
    failure = SYNTAX;
    failed_at = at;
    return 0;
}

/* Read the event at `p`, strictly or else leniently. Where we are `lost`, an object without a phase is no event. */
static const u8 *read_event(const u8 *p, int lost) {
    struct event e;
    u32 first_text = num_texts;
    const u8 *next = fields_of(p, block_end, &e);
    if (UNLIKELY(!next)) {
        forget_event(first_text);
        const u8 *strict_failed_at = failed_at;
        waste += (u64)(failed_at - p);
        if (failure == INCOMPLETE && !is_final && block_end - p < MAX_EVENT) return 0;
        if (waste > max_waste) return 0;
        enum failure_kind strict_failure = failure;
        next = mend_event(p, &e);
        if (!next) {
            forget_event(first_text);
            if (is_final) failure = strict_failure;
            failed_at = strict_failed_at;
            return 0;
        }
    }
    if (UNLIKELY(lost && !e.has_ph)) return refuse_event(p + 1, first_text);
    u8 after = *skip_space(next);
    if (UNLIKELY(after != ',' && after != ']') && holds_event(p, next)) return refuse_event(next, first_text);
    keep_event(&e, (u32)(p - input), first_text);
    return next;
}

/* Return whether an event's phase is mentioned within the next bytes. */
static int phase_follows(const u8 *p) {
    const u8 *window = block_end - p < PH_WINDOW ? block_end : p + PH_WINDOW;
    for (; p + 5 < window; p++)
        if (load32(p) == WORD('"', 'p', 'h', '"') && *skip_space(p + 4) == ':') return 1;
    return 0;
}

/* Return the byte after the fields that follow the events and the brace that closes the file's object; 0 if what
 * stands at `p` is something else. */
static const u8 *skip_tail(const u8 *p) {
    int escaped;
    for (p = skip_space(p); *p == ','; p = skip_space(p)) {
        p = skip_space(p + 1);
        if (*p != '"') return fail(p, block_end);
        p = string_end(p + 1, block_end, KEY, &escaped);
        if (!p) return 0;
        p = after_colon(p, block_end);
        p = p ? value_end(p, block_end) : 0;
        if (!p) return 0;
    }
    return *p == '}' ? p + 1 : fail(p, block_end);
}

/* Return whether the bracket at `p` ends the array of events: 1 yes, 0 no, -1 that depends on what comes. It does
 * where the file's other fields and its end follow; behind an event also where they are cut or bad, as long as no
 * other event comes. Where we are `lost`, it may be any bracket of a bad event; in one that is only cut, it is. */
static int ends_array(const u8 *p, int lost) {
    if (lost && result.cut) return 0;
    const u8 *after = skip_space(p + 1);
    int complete = is_final || block_end - p > MAX_EVENT;
    if (after + PH_WINDOW > block_end && !complete) return -1;
    if (after >= block_end) return !lost || is_top_array;
    if (!is_top_array && *after != ',' && *after != '}') return 0;
    const u8 *rest = is_top_array ? after : skip_tail(after);
    if (!rest && failure == INCOMPLETE && !complete) return -1;
    if (lost && (!rest || (is_top_array && rest < block_end))) return 0;
    rest = skip_space(rest ? rest : after);
    waste += (u64)(rest - p);
    return rest >= block_end || !phase_follows(rest);
}

/* Count what was skipped once it is known that the file goes on behind it. */
static void settle_cut(void) {
    if (result.cut) counts.malformed++;
    result.cut = 0;
}

/* Read on from `p`, where no event could be read, at the next object that proves to be one.
 * Returns where to go on; sets `lost` to whether that is still to be found. */
static const u8 *find_event(const u8 *p, int *lost, enum status *status) {
    const u8 *held = 0;
    for (; (p = next_brace(p, block_end, 1)); p++) {
        if (*p == ']') {
            int ends = ends_array(p, 1);
            if (ends < 0 && !held) held = p;
            if (ends < 1) continue;
            settle_cut();
            *status = ARRAY_END;
            *lost = 0;
            return p + 1;
        }
        const u8 *next = read_event(p, 1);
        if (next) {
            settle_cut();
            *lost = 0;
            return next;
        }
        if (exhausted) break;
        if (failure == INCOMPLETE && !is_final && !held) held = p;
        if (waste > max_waste && failed_at > p) p = failed_at - 1;
    }
    return held ? held : block_end;
}

/* Read events from byte `from` of the `length` bytes in the input buffer. Returns a status; the rest is in `result`:
 * rows filled, bytes consumed, whether reading is lost (pass it on as LOST), whether an event was cut off. */
EXPORT(parse) int parse(u32 length, u32 from, u32 flags) {
    const u8 *p = input + from;
    enum status status = NEED_MORE;
    int lost = (flags & LOST) != 0;
    block_end = input + length;
    is_final = (flags & FINAL) != 0;
    is_top_array = (flags & TOP_ARRAY) != 0;
    __builtin_memset((u8 *)block_end, '"', PADDING);
    __builtin_memset(&result, 0, sizeof result);
    __builtin_memset(&counts, 0, sizeof counts);
    __builtin_memset(arg_counts, 0, sizeof arg_counts);
    rows = 0;
    waste = 0;
    max_waste = WASTE_FREE + (u64)WASTE_FACTOR * (length - from);

    for (;;) {
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
            const u8 *next = read_event(p, 0);
            if (LIKELY(next != 0)) { p = next; continue; }
            if (failure == INCOMPLETE && !is_final) break;
            if (failure == INCOMPLETE) result.cut = 1;
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
    result.counts = counts;
    result.num_texts = num_texts;
    result.texts = texts;
    return status;
}
