/* How reading goes on where an event is no JSON: mend it, or drop it and find the next one.
 *
 * An event is recovered if lenient rules make sense of it before the next one begins. Otherwise the next object that
 * proves to be an event is searched, or the end of the array. All attempts together may read a limited number of times
 * the block; then what they read is skipped, so that damage made to be slow costs linear time. */
#pragma once
#include "shape.h"

enum status { NEED_MORE, ROWS_FULL, ARRAY_END, EXHAUSTED };
enum {
    MAX_EVENT = 16 << 20,    /* an event that is not complete after so many bytes is dropped */
    MAX_WAIT = 1 << 16,      /* a bad event waits for so many bytes to find where the next one starts */
    PH_WINDOW = 4096,        /* an event's phase comes within so many bytes */
    WASTE_FREE = 4 << 20,    /* failed attempts may read so much ... */
    WASTE_FACTOR = 8,        /* ... and so many times the block */
};

static u8 *input;
static const u8 *block_end;
static int is_final;     /* nothing follows the block */
static int is_top_array; /* the file is an array of events, not an object that holds one */
static int cut;          /* an event reaches to the end of the file */
static u64 waste, max_waste;
static u32 first_offset; /* of the input */

static const u8 *first_bad; /* where the first fault in the block is */

static void note_bad(const u8 *p) {
    if (!first_bad) first_bad = p;
}

INLINE u32 offset_of(const u8 *p) { return first_offset + (u32)(p - input); }

NOINLINE const u8 *fields_of(const u8 *p, const u8 *end, struct event *e) {
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
    if (next) return next;
    waste += (u64)(limit - p);
    if (bound) failure = SYNTAX;
    return 0;
}

/* Take back what was read from `p` to `next`: it is no event after all. */
static const u8 *refuse_event(const u8 *p, const u8 *next, u32 first_text) {
    forget_event(first_text);
    waste += (u64)(next - p);
    failure = SYNTAX;
    failed_at = next;
    return 0;
}

/* Read the event at `p`, strictly or else leniently. Where we are `lost`, an object without a phase is no event. */
static const u8 *read_event(const u8 *p, int lost) {
    struct event e;
    u32 first_text = num_texts;
    int recovered = 0;
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
        recovered = 1;
    }
    if (UNLIKELY(lost && !e.has_ph)) return refuse_event(p, next, first_text);
    u8 after = *skip_space(next);
    if (UNLIKELY(after != ',' && after != ']') && holds_event(p, next)) return refuse_event(p, next, first_text);
    counts.recovered += recovered;
    keep_event(&e, offset_of(p), first_text);
    return next;
}

/* Return whether an event's phase is mentioned within the next bytes. */
static int phase_follows(const u8 *p) {
    const u8 *window = block_end - p < PH_WINDOW ? block_end : p + PH_WINDOW;
    waste += PH_WINDOW;
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
    if (lost && (cut || waste > max_waste)) return 0;
    const u8 *after = skip_space(p + 1);
    int complete = is_final || block_end - p > MAX_EVENT;
    if (after + PH_WINDOW > block_end && !complete) return -1;
    if (after >= block_end) return !lost || is_top_array;
    if (!is_top_array && *after != ',' && *after != '}') return 0;
    const u8 *rest = is_top_array ? after : skip_tail(after);
    waste += (u64)((rest ? rest : failed_at) - p);
    if (!rest && failure == INCOMPLETE && !complete) return -1;
    if (lost && (!rest || (is_top_array && rest < block_end))) return 0;
    rest = skip_space(rest ? rest : after);
    return rest >= block_end || !phase_follows(rest);
}

/* Count what was skipped once it is known that the file goes on behind it. */
static void settle_cut(void) {
    if (cut) counts.malformed++;
    cut = 0;
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
