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
NOINLINE const u8 *any_decimal(const u8 *p, int scale, struct number *out) {
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

/* Return how many of the eight bytes in `word` are digits, from the first on. */
INLINE u32 digit_run(u64 word) {
    u64 others = ((word + 0x4646464646464646ull) | (word - 0x3030303030303030ull)) & 0x8080808080808080ull;
    return others ? (u32)__builtin_ctzll(others) >> 3 : 8;
}

/* Return the value of the first `count` (1 to 8) of eight bytes, which must be digits. */
INLINE u64 digits_value(u64 word, u32 count) {
    word <<= 64 - 8 * count;
    word = (word & 0x0f0f0f0f0f0f0f0full) * 2561 >> 8;
    word = (word & 0x00ff00ff00ff00ffull) * 6553601 >> 16;
    return (word & 0x0000ffff0000ffffull) * 42949672960001ull >> 32;
}

static const u32 POWERS[9] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

/* Read up to 16 digits at `p` without a loop; returns the byte after them. */
INLINE const u8 *short_digits(const u8 *p, u64 *value) {
    u64 word = load64(p);
    u32 count = digit_run(word);
    *value = count ? digits_value(word, count) : 0;
    if (count < 8) return p + count;
    word = load64(p + 8);
    count = digit_run(word);
    if (count) *value = *value * POWERS[count] + digits_value(word, count);
    return p + 8 + count;
}

/* Read a number of at most 16 digits and this length; returns 0 for other text. Digits may follow the text. */
INLINE int digits_alone(const u8 *p, u32 length, u64 *value) {
    if (!length || length > 16) return 0;
    u64 head = first_bytes(load64(p), length), tail = length > 8 ? first_bytes(load64(p + 8), length - 8) : 0;
    u32 count = digit_run(head), rest = length > 8 ? digit_run(tail) : 0;
    if (count + rest != length) return 0;
    *value = digits_value(head, count);
    if (rest) *value = *value * POWERS[rest] + digits_value(tail, rest);
    return 1;
}

static const u64 MAX_SHORT_US = 9000000000000000ull; /* its nanoseconds fit into 63 bits */

/* Read microseconds of at most 16 digits and three decimals at `p` as nanoseconds; returns the byte after them, or 0
 * where they have to be read the long way. */
INLINE const u8 *short_time(const u8 *start, i64 *ns) {
    u64 value;
    const u8 *p = short_digits(start, &value);
    if (UNLIKELY(p == start || value > MAX_SHORT_US)) return 0;
    u32 decimals = 0;
    if (*p == '.') {
        u64 word = load64(p + 1);
        decimals = digit_run(word);
        if (UNLIKELY(!decimals || decimals > 3)) return 0;
        value = value * POWERS[decimals] + digits_value(word, decimals);
        p += 1 + decimals;
    }
    *ns = (i64)(value * POWERS[3 - decimals]);
    return LIKELY(!is_word(*p)) ? p : 0;
}
