/* Protobuf: fields, each with a number, and a value or bytes. */
#pragma once
#include "memory.h"

struct wire {
    u64 value;
    const u8 *bytes; /* 0 unless it has a length, which is the value */
    u32 number;
};

/* Put the seven bits of each byte together. */
INLINE u64 joined_sevens(u64 bytes) {
    bytes &= 0x7f7f7f7f7f7f7f7full;
    bytes = (bytes & 0x007f007f007f007full) | (bytes & 0x7f007f007f007f00ull) >> 1;
    bytes = (bytes & 0x00003fff00003fffull) | (bytes & 0x3fff00003fff0000ull) >> 2;
    return (bytes & 0x0fffffffull) | (bytes & 0x0fffffff00000000ull) >> 4;
}

static u64 long_value; /* in memory, so that what is read in place of it need not be */

NOINLINE const u8 *long_varint(const u8 *p) {
    u64 word = load64(p), stops = ~word & 0x8080808080808080ull;
    if (LIKELY(stops != 0)) {
        long_value = joined_sevens(word & (stops ^ (stops - 1)));
        return p + (__builtin_ctzll(stops) >> 3) + 1;
    }
    long_value = joined_sevens(word) | (u64)(p[8] & 127) << 56 | (p[8] > 127 ? (u64)p[9] << 63 : 0);
    return p[8] <= 127 ? p + 9 : p[9] <= 127 ? p + 10 : 0;
}

INLINE const u8 *varint(const u8 *p, u64 *value) {
    *value = *p++;
    if (*value <= 127) return p;
    p = long_varint(p - 1);
    *value = long_value;
    return p;
}

/* Read the field at `p`; returns the byte after it, or 0 where there is none. */
NOINLINE const u8 *next_field(const u8 *p, const u8 *end, struct wire *w) {
    u64 key;
    p = varint(p, &key);
    if (UNLIKELY(!p || key >> 32 || key < 8)) return 0;
    w->number = (u32)key >> 3;
    w->bytes = 0;
    switch (key & 7) {
    case 0: p = varint(p, &w->value); break;
    case 1: w->value = load64(p); p += 8; break;
    case 5: w->value = load32(p); p += 4; break;
    case 2:
        p = varint(p, &w->value);
        if (UNLIKELY(!p || p > end || w->value > (u64)(end - p))) return 0;
        w->bytes = p;
        p += w->value;
        break;
    default: return 0;
    }
    return LIKELY(p != 0 && p <= end) ? p : 0;
}

/* The same where many are read: most have a key and a length of one byte. */
INLINE const u8 *next_wire(const u8 *p, const u8 *end, struct wire *w) {
    static struct wire long_field;
    u32 key = *p, kind = key & 0x87;
    w->number = key >> 3;
    if (LIKELY(!kind && key)) {
        w->bytes = 0;
        p = varint(p + 1, &w->value);
        if (UNLIKELY(!p)) return 0;
    } else if (LIKELY(kind == 2 && key > 7 && p[1] < 128)) {
        w->value = p[1];
        w->bytes = p + 2;
        p += 2 + w->value;
    } else {
        p = next_field(p, end, &long_field);
        w->number = long_field.number;
        w->value = long_field.value;
        w->bytes = long_field.bytes;
        return p;
    }
    return LIKELY(p <= end) ? p : 0;
}

#define EACH_BY(next, p, end, w) \
    for (const u8 *next_##w; (p) < (end) && (next_##w = next(p, end, &(w))) != 0; (p) = next_##w)
#define EACH_FIELD(p, end, w) EACH_BY(next_field, p, end, w)
#define EACH_FIELD_OF_MANY(p, end, w) EACH_BY(next_wire, p, end, w)
