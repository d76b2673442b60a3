/* Repeated packets: compare the constant bytes, read only the numbers.
 *
 * As in `shape.h`, most packets differ from an earlier one only in times and ids. A fully parsed packet is cached with
 * a mask: all bits of its constant bytes, and for each number only the bits that determine its length. The most
 * frequent follower of the recent packets is tried first, then packets of the same length and a similar event.
 *
 * Interned names and sequence defaults determine the meaning of the bytes: any change of them clears the cache. */
#pragma once
#include "shape.h"
#include "wire.h"

enum {
    MAX_NUMBERS = 16,       /* of a packet */
    MAX_REPEATED = 1 << 11, /* bytes of one */
    MAX_REPEATS = 1 << 13,
    REPEAT_BYTES = 1 << 22,
    REPEAT_SLOTS = 1 << 12,
    MAX_TRIED = 16,
    EVENT_FIELD = 11, GPU_FIELD = 53, /* of a packet */
    HISTORY_BITS = 11, /* per packet, so the history holds the last six */
};
/* columns of numbers that are not arguments */
enum { OF_TIME = MAX_COLUMNS, OF_DURATION, OF_FLOW, OF_EVENT, OF_NOTHING };
enum spelling { SEVENS, FIXED, DIGITS, ANYTHING };
/* Mask of the constant bits: a varint's continuation bits, the high half of ASCII digits. */
static const u8 SPELLED[] = {0x80, 0, 0xf0, 0};

struct number_at {
    u16 at;
    u8 length, spelling, column;
};

struct repeat {
    i64 pid, tid;
    u32 sequence, clock, content_hash;
    i32 cat, name;
    u16 length, chained;
    u8 ph, num_numbers, num_constants;
    struct number_at numbers[];
    /* followed by the constants and, 16-byte aligned, alternating blocks of 16 bytes and their mask */
};

static struct repeat **repeats; /* from 1 on: 0 is none */
static u8 *repeat_bytes;
static u32 num_repeats, repeats_end;
static u16 *repeat_slots;                        /* most recent, by length and first bytes of the event */
static u16 packet_followers[1 << FOLLOWER_BITS]; /* by history and length */

/* The packet being parsed in full. */
static struct {
    const u8 *from;
    u32 cacheable;
    u32 num_numbers;
    struct number_at numbers[MAX_NUMBERS];
    i32 track; /* of an end; else -1 */
} draft_packet;

static void clear_repeats(void) {
    num_repeats = 1;
    repeats_end = 0;
    history = 0;
    draft_packet.cacheable = 0;
    __builtin_memset(repeat_slots, 0, REPEAT_SLOTS * sizeof *repeat_slots);
    __builtin_memset(packet_followers, 0, sizeof packet_followers);
}

static int allocate_repeats(void) {
    repeats = allocate(MAX_REPEATS * sizeof *repeats);
    repeat_bytes = allocate(REPEAT_BYTES);
    repeat_slots = allocate(REPEAT_SLOTS * sizeof *repeat_slots);
    if (!repeats || !repeat_bytes || !repeat_slots) return 0;
    clear_repeats();
    return 1;
}

/* Record a variable number of the packet. */
INLINE void note_number(const u8 *p, const u8 *end, enum spelling spelling, u32 column) {
    u32 length = (u32)(end - p), most = spelling == SEVENS ? 9 : spelling == DIGITS ? 16 : 32;
    if (UNLIKELY(draft_packet.num_numbers == MAX_NUMBERS || length > most || p - draft_packet.from >= MAX_REPEATED)) {
        draft_packet.cacheable = 0;
        return;
    }
    draft_packet.numbers[draft_packet.num_numbers++] =
        (struct number_at){(u16)(p - draft_packet.from), (u8)length, (u8)spelling, (u8)column};
}

INLINE const struct constant *repeated_constants(const struct repeat *r) {
    return (const struct constant *)(((u32)(r->numbers + r->num_numbers) + 3) & ~3u);
}
INLINE const u8 *repeated_bytes(const struct repeat *r) {
    return (const u8 *)(((u32)(repeated_constants(r) + r->num_constants) + 15) & ~15u);
}

INLINE int repeats_at(const struct repeat *r, const u8 *p, u32 length) {
    if (r->length != length) return 0;
    const u8 *known = repeated_bytes(r);
    for (u32 i = 0; i < length; i += 16, known += 32) {
        v128_t differ = wasm_v128_xor(wasm_v128_load(known), wasm_v128_load(p + i));
        if (wasm_v128_any_true(wasm_v128_and(differ, wasm_v128_load(known + 16)))) return 0;
    }
    return 1;
}

/* Return the follower slot for the recent packets and this length. */
INLINE u16 *packet_follower(u32 length) {
    u64 h = (history + length) * 0x9e3779b97f4a7c15ull;
    return &packet_followers[(h ^ h >> 29) * 0xd6e8feb86659fd93ull >> (64 - FOLLOWER_BITS)];
}

/* Return the slot for this length and the event's type, track and name. */
NOINLINE u16 *repeat_slot(const u8 *p, u32 length) {
    struct wire w;
    u64 h = length;
    const u8 *end = p + length;
    EACH_FIELD_OF_MANY(p, end, w) if (w.number == EVENT_FIELD || w.number == GPU_FIELD) break;
    if (p < end && w.bytes && w.number == EVENT_FIELD) h ^= first_bytes(load64(w.bytes), (u32)w.value);
    else if (p < end && w.bytes) {
        end = w.bytes + w.value;
        p = w.bytes;
        EACH_FIELD_OF_MANY(p, end, w) if (w.number == 17 || w.number == 20) break;
        h ^= w.value;
    }
    h *= 0x9e3779b97f4a7c15ull;
    return repeat_slots + ((h ^ h >> 29) * 0xd6e8feb86659fd93ull >> 52);
}

INLINE void note_packet(u32 content_hash) { history = (history << HISTORY_BITS) + content_hash * 0x9e3779b1u; }

NOINLINE u32 find_repeat(const u8 *p, u32 length) {
    u16 *first = repeat_slot(p, length);
    u32 before = 0, tried = MAX_TRIED;
    for (u32 found = *first; found && tried--; before = found, found = repeats[found]->chained) {
        if (!repeats_at(repeats[found], p, length)) continue;
        if (before) { /* to the front */
            repeats[before]->chained = repeats[found]->chained;
            repeats[found]->chained = *first;
            *first = (u16)found;
        }
        return found;
    }
    return 0;
}

/* Return the cached packet that matches, or 0. */
INLINE const struct repeat *repeated(const u8 *p, u32 length) {
    if (UNLIKELY(!credit && rows % TRIED_OF)) return 0;
    u16 *slot = packet_follower(length);
    u32 number = *slot;
    if (UNLIKELY(!number || !repeats_at(repeats[number], p, length))) {
        number = find_repeat(p, length);
        if (!number) return 0;
        *slot = (u16)number;
    }
    note_packet(repeats[number]->content_hash);
    if (credit < MAX_CREDIT) credit += CREDIT_PER_EVENT;
    return repeats[number];
}

/* Add the packet at `p` to the cache. */
NOINLINE void learn_packet(const u8 *p, const struct repeat *about, const struct constant *constants) {
    if (!credit || about->length > MAX_REPEATED) return;
    credit--;
    u32 blocks = (about->length + 15u) / 16, room = sizeof(struct repeat) + 64 + 32 * blocks +
        draft_packet.num_numbers * sizeof(struct number_at) + about->num_constants * sizeof(struct constant);
    if (num_repeats == MAX_REPEATS || repeats_end + room > REPEAT_BYTES) { clear_repeats(); return; }
    struct repeat *r = (struct repeat *)(repeat_bytes + repeats_end);
    repeats_end += (room + 15) & ~15u;
    *r = *about;
    r->num_numbers = (u8)draft_packet.num_numbers;
    __builtin_memcpy(r->numbers, draft_packet.numbers, draft_packet.num_numbers * sizeof(struct number_at));
    __builtin_memcpy((void *)repeated_constants(r), constants, r->num_constants * sizeof(struct constant));
    u8 *known = (u8 *)repeated_bytes(r);
    for (u32 i = 0; i < blocks; i++) {
        u32 rest = r->length - 16 * i;
        wasm_v128_store(known + 32 * i, wasm_v128_load(p + 16 * i));
        wasm_v128_store(known + 32 * i + 16, wasm_v128_load(FIRST_BYTES + 16 - (rest < 16 ? rest : 16)));
    }
    for (u32 n = 0; n < draft_packet.num_numbers; n++)
        for (u32 k = 0; k < draft_packet.numbers[n].length; k++) {
            u32 i = draft_packet.numbers[n].at + k;
            known[i / 16 * 32 + 16 + i % 16] = SPELLED[draft_packet.numbers[n].spelling];
        }
    u16 *slot = packet_follower(r->length), *first = repeat_slot(p, r->length);
    repeats[num_repeats] = r;
    r->chained = *first;
    *slot = *first = (u16)num_repeats;
    num_repeats++;
    note_packet(r->content_hash);
}
