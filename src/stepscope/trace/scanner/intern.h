/* The table of distinct texts: raw bytes in, a small number out, the same number for the same bytes.
 *
 * It grows as needed, up to a budget; past that `exhausted` is set and reading stops with an error. */
#pragma once
#include "memory.h"

enum {
    NO_STRING = -1,
    MAX_TEXT = 65536,        /* longer texts are shortened */
    MAX_STRINGS = 4 << 20,   /* distinct texts per file and thread */
    MAX_ARENA = 512 << 20,   /* bytes of distinct texts */
    ARENA_CHUNK = 1 << 18,
    FIRST_SLOTS = 1 << 13,
    MAX_PROBES = 1024,       /* only texts made to collide need more */
};

enum text_flags {
    TEXT_JSON = 1,      /* the JSON text of a list or an object */
    TEXT_ESCAPED = 2,   /* holds a backslash */
    TEXT_SHORTENED = 4,
    TEXT_LENIENT = 8,    /* read leniently: may hold control characters and bare quotes */
};

struct text {
    const u8 *bytes;
    u32 length;
    u32 flags;
};

static struct text *texts;
static u32 num_texts, max_texts;
static u64 *slots; /* hash << 32 | text number + 1; 0 is free */
static u32 slot_mask;
static u8 *arena;
static u32 arena_left, arena_total;
static int exhausted;

static u32 hash_bytes(const u8 *p, u32 length, u32 flags) {
    u64 h = length * 0x9e3779b97f4a7c15ull + flags;
    u32 i = 0;
    for (; i + 8 <= length; i += 8) {
        h = (h ^ load64(p + i)) * 0xd6e8feb86659fd93ull;
        h ^= h >> 32;
    }
    if (i < length) h = (h ^ first_bytes(load64(p + i), length - i)) * 0xd6e8feb86659fd93ull;
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15ull;
    return (u32)(h >> 32);
}

/* Make room for twice as many texts. Returns 0 when there is no memory left. */
static int grow_table(void) {
    u32 new_slots = slot_mask ? (slot_mask + 1) * 2 : FIRST_SLOTS;
    u64 *fresh = allocate((u64)new_slots * 8);
    struct text *more = enlarge(texts, num_texts * sizeof *texts, (u64)new_slots / 2 * sizeof *texts);
    if (!fresh || !more) return 0;
    __builtin_memset(fresh, 0, new_slots * 8);
    for (u32 i = 0; slot_mask && i <= slot_mask; i++) {
        if (!slots[i]) continue;
        u32 at = (u32)(slots[i] >> 32) & (new_slots - 1);
        while (fresh[at]) at = (at + 1) & (new_slots - 1);
        fresh[at] = slots[i];
    }
    slots = fresh;
    slot_mask = new_slots - 1;
    texts = more;
    max_texts = new_slots / 2;
    return 1;
}

/* Return a lasting copy of a text, readable 16 bytes past its end; 0 when the budget is spent. */
static const u8 *keep_bytes(const u8 *p, u32 length) {
    u32 bytes = length + 16;
    if (bytes > arena_left) {
        arena_left = bytes > ARENA_CHUNK ? bytes : ARENA_CHUNK;
        arena = allocate(arena_left);
        arena_total += arena_left;
        if (!arena || arena_total > MAX_ARENA) return 0;
    }
    u8 *copy = arena;
    __builtin_memcpy(copy, p, length);
    arena += bytes;
    arena_left -= bytes;
    return copy;
}

NOINLINE i32 add_text(const u8 *p, u32 length, u32 flags, u32 hash) {
    const u8 *copy;
    if (num_texts == MAX_STRINGS || (num_texts == max_texts && !grow_table()) || !(copy = keep_bytes(p, length))) {
        exhausted = 1;
        return 0;
    }
    u32 at = hash & slot_mask;
    while (slots[at]) at = (at + 1) & slot_mask;
    slots[at] = (u64)hash << 32 | (num_texts + 1);
    texts[num_texts] = (struct text){copy, length, flags};
    return (i32)num_texts++;
}

/* Take back the texts from number `first` on, the latest first: so nothing that was put behind one is lost. */
NOINLINE void forget_texts(u32 first) {
    while (num_texts > first) {
        const struct text *t = &texts[num_texts - 1];
        u32 at = hash_bytes(t->bytes, t->length, t->flags) & slot_mask;
        while ((u32)slots[at] != num_texts) at = (at + 1) & slot_mask;
        slots[at] = 0;
        num_texts--;
    }
}

/* Return the length to which a long text is cut: never inside an escape or a UTF-8 sequence. */
static u32 shortened_length(const u8 *p) {
    u32 cut = MAX_TEXT;
    while (cut > MAX_TEXT - 8 && (p[cut] & 0xc0) == 0x80) cut--;
    for (u32 i = cut - 6; i < cut; i++) {
        if (p[i] != '\\') continue;
        while (i && p[i - 1] == '\\') i--;
        return i;
    }
    return cut;
}

/* Return the number of a text. */
static i32 intern(const u8 *p, u32 length, u32 flags) {
    if (UNLIKELY(length > MAX_TEXT)) {
        length = shortened_length(p);
        flags |= TEXT_SHORTENED;
    }
    u32 hash = hash_bytes(p, length, flags);
    u32 probes = 0;
    for (u32 at = hash & slot_mask; slots[at]; at = (at + 1) & slot_mask) {
        if (UNLIKELY(++probes > MAX_PROBES)) exhausted = 1;
        if ((u32)(slots[at] >> 32) != hash) continue;
        const struct text *known = &texts[(u32)slots[at] - 1];
        if (known->length == length && known->flags == flags && same_bytes(known->bytes, p, length))
            return (i32)((u32)slots[at] - 1);
    }
    return add_text(p, length, flags, hash);
}

/* Texts that were read lately, by the first bytes of their values: names and shapes repeat. */
enum { RECENT_SETS = 1 << 11 };
static u32 recent[RECENT_SETS][2]; /* text number + 1, the later one first */

INLINE u32 *recent_at(const u8 *p) {
    u64 h = (load64(p) ^ load64(p + 8) * 0x9e3779b97f4a7c15ull) * 0xd6e8feb86659fd93ull;
    return recent[h >> 53];
}

INLINE void keep_recent(u32 *set, i32 id) {
    if (set[0] == (u32)id + 1) return;
    set[1] = set[0];
    set[0] = (u32)id + 1;
}

/* Return the byte after the value at `p`, and the number of its text, if that is one of a set, else 0. A string that
 * begins with a known content and its closing quote ends there, and so does a list or an object that begins with a
 * known one. Other values have no such end. */
INLINE const u8 *after_recent_text(const u32 *set, const u8 *p, const u8 *end, i32 *id) {
    u32 quote = *p == '"';
    if (UNLIKELY(!quote && *p != '[' && *p != '{')) return 0;
    for (u32 way = 0; way < 2; way++) {
        if (UNLIKELY(!set[way] || set[way] > num_texts)) continue; /* a text may have been taken back */
        const struct text *t = &texts[set[way] - 1];
        const u8 *content = p + quote, *after = content + t->length;
        if ((t->flags & ~(u32)TEXT_ESCAPED) != (quote ? 0 : TEXT_JSON) || after >= end) continue;
        if ((quote && *after != '"') || !same_bytes(t->bytes, content, t->length)) continue;
        *id = (i32)set[way] - 1;
        return after + quote;
    }
    return 0;
}
