/* Packets that repeat: what is the same is compared as bytes, and only the numbers are read.
 *
 * As in `shape.h`, most packets differ from an earlier one in times and ids alone. A packet that was read the long way
 * is kept with a mask: all of its bytes, but of the numbers that may differ only the bits by which their lengths are
 * known. What followed the last ones is tried first, then what came lately with the same length.
 *
 * What bytes mean depends on what was read before, so all is forgotten where that changes. */
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
    LATEST_BITS = 11, /* of the history: each is in it until so many bits were shifted out */
};
enum { OF_TIME = MAX_COLUMNS, OF_DURATION, OF_FLOW, OF_EVENT, OF_NOTHING }; /* columns of what is no argument */
enum spelling { SEVENS, FIXED, DIGITS, ANYTHING };
/* What is the same where a number is spelled so: of seven bits each whether another follows, of digits that they are */
static const u8 SPELLED[] = {0x80, 0, 0xf0, 0};

struct number_at {
    u16 at;
    u8 length, spelling, column;
};

struct repeat {
    i64 pid, tid;
    u32 sequence, clock, what; /* by which it is recognised in the history */
    i32 cat, name;
    u16 length, chained;
    u8 ph, num_numbers, num_constants;
    struct number_at numbers[];
    /* behind them: constants, and from the next multiple of 16 on, 16 bytes and their mask in turn */
};

static struct repeat **repeats; /* from 1 on: 0 is none */
static u8 *repeat_bytes;
static u32 num_repeats, repeats_end;
static u16 *repeat_slots;                        /* the one that came last, by length and how its event begins */
static u16 packet_followers[1 << FOLLOWER_BITS]; /* by the last ones */

/* The packet that is read the long way. */
static struct {
    const u8 *from;
    u32 is_known; /* nothing speaks against keeping it */
    u32 num_numbers;
    struct number_at numbers[MAX_NUMBERS];
    i32 track; /* of an end; else -1 */
} now;

static void forget_repeats(void) {
    num_repeats = 1;
    repeats_end = 0;
    history = 0;
    now.is_known = 0;
    __builtin_memset(repeat_slots, 0, REPEAT_SLOTS * sizeof *repeat_slots);
    __builtin_memset(packet_followers, 0, sizeof packet_followers);
}

static int allocate_repeats(void) {
    repeats = allocate(MAX_REPEATS * sizeof *repeats);
    repeat_bytes = allocate(REPEAT_BYTES);
    repeat_slots = allocate(REPEAT_SLOTS * sizeof *repeat_slots);
    if (!repeats || !repeat_bytes || !repeat_slots) return 0;
    forget_repeats();
    return 1;
}

/* Note a number of the packet that may differ the next time. */
INLINE void note_number(const u8 *p, const u8 *end, enum spelling spelling, u32 column) {
    u32 length = (u32)(end - p), most = spelling == SEVENS ? 9 : spelling == DIGITS ? 16 : 32;
    if (UNLIKELY(now.num_numbers == MAX_NUMBERS || length > most || p - now.from >= MAX_REPEATED)) {
        now.is_known = 0;
        return;
    }
    now.numbers[now.num_numbers++] = (struct number_at){(u16)(p - now.from), (u8)length, (u8)spelling, (u8)column};
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

/* Return where is kept what follows the last ones and is as long. */
INLINE u16 *packet_follower(u32 length) {
    u64 h = (history + length) * 0x9e3779b97f4a7c15ull;
    return &packet_followers[(h ^ h >> 29) * 0xd6e8feb86659fd93ull >> (64 - FOLLOWER_BITS)];
}

/* Return the slot of packets as long as this one whose events begin alike, with type, track and name. */
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

INLINE void note_packet(u32 what) { history = (history << LATEST_BITS) + what * 0x9e3779b1u; }

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

/* Return what the packet repeats, 0 if nothing. */
INLINE const struct repeat *repeated(const u8 *p, u32 length) {
    if (UNLIKELY(!credit && rows % TRIED_OF)) return 0;
    u16 *slot = packet_follower(length);
    u32 number = *slot;
    if (UNLIKELY(!number || !repeats_at(repeats[number], p, length))) {
        number = find_repeat(p, length);
        if (!number) return 0;
        *slot = (u16)number;
    }
    note_packet(repeats[number]->what);
    if (credit < MAX_CREDIT) credit += CREDIT_PER_EVENT;
    return repeats[number];
}

/* Keep the packet from `p` on that was just read, with what is the same in all of its kind. */
NOINLINE void learn_packet(const u8 *p, const struct repeat *about, const struct constant *constants) {
    if (!credit || about->length > MAX_REPEATED) return;
    credit--;
    u32 blocks = (about->length + 15u) / 16, room = sizeof(struct repeat) + 64 + 32 * blocks +
        now.num_numbers * sizeof(struct number_at) + about->num_constants * sizeof(struct constant);
    if (num_repeats == MAX_REPEATS || repeats_end + room > REPEAT_BYTES) { forget_repeats(); return; }
    struct repeat *r = (struct repeat *)(repeat_bytes + repeats_end);
    repeats_end += (room + 15) & ~15u;
    *r = *about;
    r->num_numbers = (u8)now.num_numbers;
    __builtin_memcpy(r->numbers, now.numbers, now.num_numbers * sizeof(struct number_at));
    __builtin_memcpy((void *)repeated_constants(r), constants, r->num_constants * sizeof(struct constant));
    u8 *known = (u8 *)repeated_bytes(r);
    for (u32 i = 0; i < blocks; i++) {
        u32 rest = r->length - 16 * i;
        wasm_v128_store(known + 32 * i, wasm_v128_load(p + 16 * i));
        wasm_v128_store(known + 32 * i + 16, wasm_v128_load(FIRST_BYTES + 16 - (rest < 16 ? rest : 16)));
    }
    for (u32 n = 0; n < now.num_numbers; n++)
        for (u32 k = 0; k < now.numbers[n].length; k++) {
            u32 i = now.numbers[n].at + k;
            known[i / 16 * 32 + 16 + i % 16] = SPELLED[now.numbers[n].spelling];
        }
    u16 *slot = packet_follower(r->length), *first = repeat_slot(p, r->length);
    repeats[num_repeats] = r;
    r->chained = *first;
    *slot = *first = (u16)num_repeats;
    num_repeats++;
    note_packet(r->what);
}
