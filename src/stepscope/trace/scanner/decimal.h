/* Decimal numbers to exact integers: no floating point anywhere.
 *
 * The value is scaled by a power of ten (microseconds to nanoseconds: 3) and rounded half away from zero. */
#pragma once
#include "text.h"

enum number_kind { NO_NUMBER, IN_RANGE, OUT_OF_RANGE };

struct number {
    i64 value;
    enum number_kind kind;
    int exact; /* whether nothing was rounded away */
};

enum { MAX_EXPONENT = 100000 }; /* larger ones are clamped: the value is 0 or out of range either way */

INLINE int is_digit(u8 c) { return (u8)(c - '0') < 10; }

/* Return the first `count` digits at `p`, which may hold one decimal point, as an integer; zeros follow the last
 * digit. Sets `next` to the digit behind them and `rest` to whether any digit from there on is not zero. */
static u64 leading_digits(const u8 *p, const u8 *stop, i64 count, u32 *next, int *rest, int *overflow) {
    u64 value = 0;
    *next = 0;
    *rest = *overflow = 0;
    for (i64 i = 0; p < stop || i < count; i++) {
        if (p < stop && *p == '.') p++;
        u32 digit = p < stop ? (u32)(*p++ - '0') : 0;
        if (i >= count) {
            if (i == count) *next = digit;
            *rest |= digit != 0;
        } else if (value > (~(u64)0 - digit) / 10) {
            *overflow = 1;
            return 0;
        } else {
            value = value * 10 + digit;
        }
    }
    return value;
}

/* Read any number at `p` into `out`, whatever its length and exponent; returns the byte after it. */
static __attribute__((noinline)) const u8 *any_decimal(const u8 *p, int scale, struct number *out) {
    int negative = *p == '-';
    const u8 *digits = p + negative, *stop;
    i64 whole = 0, exponent = 0;
    int fraction = 0;
    out->kind = NO_NUMBER;
    for (stop = digits; is_digit(*stop); stop++) whole++;
    if (!whole) return p;
    if (*stop == '.') {
        for (stop++; is_digit(*stop); stop++) fraction = 1;
        if (!fraction) return p;
    }
    p = stop;
    if ((*p | 0x20) == 'e') {
        const u8 *e = p + 1;
        int minus = *e == '-';
        if (*e == '-' || *e == '+') e++;
        if (!is_digit(*e)) return p;
        for (; is_digit(*e); e++) if (exponent < MAX_EXPONENT) exponent = exponent * 10 + (*e - '0');
        if (minus) exponent = -exponent;
        p = e;
    }
    while (digits < stop && (*digits == '0' || *digits == '.')) { /* leading zeros say nothing */
        whole -= *digits++ == '0';
    }
    u32 next;
    int rest, overflow = 0;
    i64 kept = whole + exponent + scale;
    out->exact = digits == stop;
    out->value = 0;
    out->kind = IN_RANGE;
    if (digits == stop || kept < 0) return p;
    out->kind = OUT_OF_RANGE;
    if (kept > 20) return p;
    u64 value = leading_digits(digits, stop, kept, &next, &rest, &overflow);
    if (overflow || value > INT64_MAX) return p;
    value += next >= 5;
    if (value > INT64_MAX) return p;
    out->value = negative ? -(i64)value : (i64)value;
    out->kind = IN_RANGE;
    out->exact = !rest;
    return p;
}

/* Return the value of eight digits at `p`; `p` must hold digits only. */
INLINE u64 eight_digits(u64 word) {
    word = (word & 0x0f0f0f0f0f0f0f0full) * 2561 >> 8;
    word = (word & 0x00ff00ff00ff00ffull) * 6553601 >> 16;
    return (word & 0x0000ffff0000ffffull) * 42949672960001ull >> 32;
}

INLINE int are_eight_digits(u64 word) {
    return ((word & 0xf0f0f0f0f0f0f0f0ull) | ((word + 0x0606060606060606ull) & 0xf0f0f0f0f0f0f0f0ull) >> 4) == 0x3333333333333333ull;
}

/* Read a number of at most 15 whole digits and exactly `scale` decimals or none; anything else goes the long way. */
INLINE const u8 *decimal(const u8 *start, int scale, struct number *out) {
    const u8 *p = start;
    u64 value = 0;
    u64 word = load64(p);
    if (are_eight_digits(word)) { value = eight_digits(word); p += 8; }
    const u8 *most = start + 15;
    while (is_digit(*p) && p < most) value = value * 10 + (*p++ - '0');
    if (UNLIKELY(p == start)) return any_decimal(start, scale, out);
    int decimals = 0;
    if (scale && *p == '.') {
        p++;
        while (decimals < scale && is_digit(*p)) { value = value * 10 + (*p++ - '0'); decimals++; }
        if (UNLIKELY(!decimals)) return any_decimal(start, scale, out);
    }
    if (UNLIKELY(is_word(*p))) return any_decimal(start, scale, out);
    for (; decimals < scale; decimals++) value *= 10;
    out->value = (i64)value;
    out->kind = IN_RANGE;
    out->exact = 1;
    return p;
}
