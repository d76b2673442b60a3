/* The columns being filled: a value per event in the dense ones, (row, value) in one pair per argument.
 *
 * Every argument has at most one value per event, so each of its arrays needs as many places as there are rows, and
 * some more: arrays that lie a power of two apart, filled in step, would take the same few places of the cache. */
#pragma once
#include "decimal.h"
#include "intern.h"

enum { ROW_CAPACITY = 1 << 15, STRIDE = ROW_CAPACITY + 112, MAX_COLUMNS = 96 };
enum { MAX_KEYS = 192, KEY_SLOTS = 1024, MAX_KEY_LENGTH = 47 };
enum arg_kind { ARG_INT, ARG_TEXT, ARG_FLOAT, ARG_IGNORED };

static const i64 NONE_NS = INT64_MIN;
static const i64 STRING_ID_BASE = -((i64)1 << 62);

struct key {
    u8 text[MAX_KEY_LENGTH + 17];
    u32 length;
    i32 column;
    enum arg_kind kind;
    u8 next; /* number + 1 of the key that came after it the last time; 0 is unknown */
};

static u8 *col_ph;
static i32 *col_cat, *col_name;
static i64 *col_pid, *col_tid, *col_ts, *col_dur;
static u32 *col_offset;
static u32 rows;

static u32 *arg_rows;
static i64 *arg_values;
static u32 arg_counts[MAX_COLUMNS];
static u32 num_columns;

static struct key keys[MAX_KEYS];
static u32 num_keys;
static u8 key_slots[KEY_SLOTS]; /* key number + 1; 0 is free */

INLINE u32 key_hash(const u8 *p, u32 length) {
    u64 head = first_bytes(load64(p), length);
    u64 tail = length > 8 ? first_bytes(load64(p + 8), length - 8) : 0;
    u64 h = (head ^ tail * 31 ^ length) * 0x9e3779b97f4a7c15ull;
    return (u32)(h >> 54) & (KEY_SLOTS - 1);
}

/* Return the configured key with this text, or 0. */
NOINLINE struct key *find_key(const u8 *p, u32 length) {
    for (u32 at = key_hash(p, length); key_slots[at]; at = (at + 1) & (KEY_SLOTS - 1)) {
        struct key *k = &keys[key_slots[at] - 1];
        if (k->length == length && same_bytes(k->text, p, length)) return k;
    }
    return 0;
}

/* Return the key with this number + 1 if it stands at `p`, its closing quote included, or 0. */
INLINE struct key *expected_key(u32 number, const u8 *p, const u8 *end) {
    if (!number) return 0;
    struct key *k = &keys[number - 1];
    return LIKELY(p + k->length < end && p[k->length] == '"' && same_bytes(k->text, p, k->length)) ? k : 0;
}

static int add_key(const u8 *p, u32 length, i32 column, enum arg_kind kind) {
    if (num_keys == MAX_KEYS || length > MAX_KEY_LENGTH || column >= MAX_COLUMNS) return 0;
    struct key *k = &keys[num_keys++];
    __builtin_memcpy(k->text, p, length);
    k->length = length;
    k->column = column;
    k->kind = kind;
    u32 at = key_hash(p, length);
    while (key_slots[at]) at = (at + 1) & (KEY_SLOTS - 1);
    key_slots[at] = (u8)num_keys;
    if ((u32)column + 1 > num_columns) num_columns = (u32)column + 1;
    return 1;
}

static int allocate_columns(void) {
    col_ph = allocate(STRIDE);
    col_cat = allocate(STRIDE * 4);
    col_name = allocate(STRIDE * 4);
    col_pid = allocate(STRIDE * 8);
    col_tid = allocate(STRIDE * 8);
    col_ts = allocate(STRIDE * 8);
    col_dur = allocate(STRIDE * 8);
    col_offset = allocate(STRIDE * 4);
    arg_rows = allocate((u64)MAX_COLUMNS * STRIDE * 4);
    arg_values = allocate((u64)MAX_COLUMNS * STRIDE * 8);
    return arg_values != 0;
}

/* Return whether the argument has a value in the row being filled. */
INLINE int has_arg(i32 column) {
    u32 n = arg_counts[column];
    return n && arg_rows[column * STRIDE + n - 1] == rows;
}

/* Take back the argument's value in the row being filled: a later one counts instead, or the event is dropped. */
INLINE void forget_arg(i32 column) {
    if (has_arg(column)) arg_counts[column]--;
}

/* Add an argument's value where the row has none yet. */
INLINE void add_arg(i32 column, i64 value) {
    u32 at = column * STRIDE + arg_counts[column]++;
    arg_rows[at] = rows;
    arg_values[at] = value;
}

INLINE void put_arg(i32 column, i64 value) {
    forget_arg(column);
    add_arg(column, value);
}

static void forget_args(void) {
    for (u32 i = 0; i < num_columns; i++) forget_arg((i32)i);
}
