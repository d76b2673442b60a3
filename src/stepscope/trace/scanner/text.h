/* Where white space, strings, nested values and bare words end.
 *
 * The input is followed by PADDING quotes. White space, numbers and words stop at a quote, and so does a string,
 * so no loop needs a bounds check: a value that ends at or behind `end` was cut off, which `fail` tells apart. */
#pragma once
#include "memory.h"

enum { PADDING = 64, MAX_DEPTH = 64, MAX_KEY_AHEAD = 64 };
enum failure_kind { SYNTAX, INCOMPLETE };

static enum failure_kind failure;
static const u8 *failed_at;

/* Note why and where parsing stopped; returns 0 so that a caller can return it in turn. */
NOINLINE const u8 *fail(const u8 *at, const u8 *end) {
    failure = at >= end ? INCOMPLETE : SYNTAX;
    failed_at = at;
    return 0;
}

INLINE const u8 *skip_space(const u8 *p) {
    if (*p > ' ') return p;
    p++;
    if (*p > ' ') return p;
    for (;;) { /* an indentation: a line's end, then blanks */
        u64 others = load64(p) ^ 0x2020202020202020ull;
        if (UNLIKELY(!others)) { p += 8; continue; }
        p += __builtin_ctzll(others) >> 3;
        if (LIKELY(*p > ' ')) return p;
        p++;
    }
}

enum string_role { KEY, MEMBER, ELEMENT };

static int lenient; /* whether control characters and bare quotes count as content of strings */

/* Return whether a quote with `p` behind it can close a string: a bare quote is content unless a key's colon, a
 * closing bracket or a comma follows; after a member of an object the comma must be followed by the next key. */
NOINLINE int closes_string(const u8 *p, const u8 *end, enum string_role role) {
    p = skip_space(p);
    if (p >= end) return 0;
    if (role == KEY) return *p == ':';
    if (*p == '}' || *p == ']') return 1;
    if (*p != ',') return 0;
    if (role == ELEMENT) return 1;
    p = skip_space(p + 1);
    if (*p != '"') return 0;
    const u8 *limit = p + MAX_KEY_AHEAD < end ? p + MAX_KEY_AHEAD : end;
    for (p++; p < limit && *p != '"'; p++) {}
    return p < limit && *skip_space(p + 1) == ':';
}

/* Return the closing quote of the string whose content starts at `p`. */
NOINLINE const u8 *string_end(const u8 *p, const u8 *end, enum string_role role, int *escaped) {
    for (;;) {
        v128_t v = wasm_v128_load(p);
        v128_t stop = wasm_v128_or(wasm_i8x16_eq(v, wasm_u8x16_splat('"')), wasm_i8x16_eq(v, wasm_u8x16_splat('\\')));
        u32 stops = wasm_i8x16_bitmask(wasm_v128_or(stop, wasm_u8x16_lt(v, wasm_u8x16_splat(' '))));
        if (!stops) { p += 16; continue; }
        p += __builtin_ctz(stops);
        if (UNLIKELY(p >= end)) return fail(p, end);
        if (LIKELY(*p == '"')) {
            if (LIKELY(!lenient) || closes_string(p + 1, end, role)) return p;
            p++;
        } else if (*p == '\\') {
            *escaped = 1;
            p += 2;
        } else {
            if (!lenient) return fail(p, end);
            p++;
        }
    }
}

/* The brackets open at a point of a value. */
struct nesting {
    u64 kinds; /* a bit each, the innermost lowest: 1 for a brace */
    u32 depth;
};

/* Count a bracket. Returns 0 where it closes one of the other kind, or is too deep. */
INLINE int count_bracket(struct nesting *n, u8 bracket) {
    u64 kind = bracket >> 5 & 1; /* { and } have this bit, [ and ] do not */
    if ((bracket & 0x1f) == ('{' & 0x1f)) {
        n->kinds = n->kinds << 1 | kind;
        return ++n->depth <= MAX_DEPTH;
    }
    int fits = (n->kinds & 1) == kind;
    n->kinds >>= 1;
    n->depth--;
    return fits;
}

/* Return the byte after the bracket that closes the open ones, a byte at a time. */
NOINLINE const u8 *nested_end_by_bytes(const u8 *p, const u8 *end, struct nesting n) {
    int escaped;
    for (; p < end; p++) {
        if (*p == '"') {
            p = string_end(p + 1, end, ELEMENT, &escaped);
            if (!p) return 0;
        } else if ((*p | 0x20) == '{' || (*p | 0x20) == '}') {
            if (!count_bracket(&n, *p)) return fail(p, end);
            if (!n.depth) return p + 1;
        }
    }
    return fail(p, end);
}

INLINE u32 inside_quotes(u32 quotes) {
    quotes ^= quotes << 1;
    quotes ^= quotes << 2;
    quotes ^= quotes << 4;
    return (quotes ^ (quotes << 8)) & 0xffff;
}

/* Return the byte after the bracket that closes the one at `p`: 16 bytes at a time as long as no backslash comes. */
NOINLINE const u8 *nested_end(const u8 *p, const u8 *end) {
    struct nesting n = {0, 0};
    u32 in_string = 0; /* all ones while a string reaches over from the bytes before */
    if (UNLIKELY(lenient)) return nested_end_by_bytes(p, end, n);
    for (; p < end; p += 16) {
        v128_t v = wasm_v128_load(p);
        v128_t folded = wasm_v128_or(v, wasm_u8x16_splat(0x20)); /* [ and ] become { and } */
        if (UNLIKELY(wasm_v128_any_true(wasm_i8x16_eq(v, wasm_u8x16_splat('\\'))))) {
            if (in_string) { /* finish the string first */
                int escaped;
                p = string_end(p, end, ELEMENT, &escaped);
                if (!p) return 0;
                p++;
            }
            return nested_end_by_bytes(p, end, n);
        }
        u32 inside = inside_quotes(wasm_i8x16_bitmask(wasm_i8x16_eq(v, wasm_u8x16_splat('"')))) ^ in_string;
        u32 control = wasm_i8x16_bitmask(wasm_u8x16_lt(v, wasm_u8x16_splat(' '))) & inside;
        v128_t bracket = wasm_v128_or(wasm_i8x16_eq(folded, wasm_u8x16_splat('{')), wasm_i8x16_eq(folded, wasm_u8x16_splat('}')));
        u32 brackets = wasm_i8x16_bitmask(bracket) & ~inside;
        if (UNLIKELY(control)) brackets &= (control & -control) - 1;
        for (; brackets; brackets &= brackets - 1) {
            const u8 *at = p + __builtin_ctz(brackets);
            if (UNLIKELY(!count_bracket(&n, *at))) return fail(at, end);
            if (!n.depth) return at + 1;
        }
        if (UNLIKELY(control)) return fail(p + __builtin_ctz(control), end);
        in_string = -(inside >> 15 & 1) & 0xffff;
    }
    return fail(end, end);
}

INLINE int is_word(u8 c) {
    return (u8)((c | 0x20) - 'a') < 26 || (u8)(c - '0') < 10 || c == '-' || c == '+' || c == '.';
}

/* Return the byte after a number, true, null, NaN and the like. */
static const u8 *word_end(const u8 *p, const u8 *end) {
    const u8 *start = p;
    while (is_word(*p)) p++;
    return p > start ? p : fail(p, end);
}

/* Return the byte after any value. */
NOINLINE const u8 *value_end(const u8 *p, const u8 *end) {
    int escaped;
    if (*p == '"') {
        p = string_end(p + 1, end, MEMBER, &escaped);
        return p ? p + 1 : 0;
    }
    if (*p == '[' || *p == '{') return nested_end(p, end);
    return word_end(p, end);
}
