/* Events that repeat: what is the same is compared as bytes, and only the numbers are read.
 *
 * A job does the same things step after step, so most events differ from an earlier one in their times and ids alone.
 * The text of an event is cut into parts, each a literal and the number behind it. Its shape lists them, with what the
 * literals mean, because they were read once the long way and the same bytes mean the same again. What followed the
 * last two events is tried first. Where that is wrong, the parts are looked for in a tree, in which events that begin
 * alike share their first ones. Nothing is stored before the last part fits, so an event that leaves the known paths is
 * read the long way, and its own shape is added. */
#pragma once
#include "event.h"

enum {
    MAX_PARTS = 24,         /* of an event */
    MAX_CONSTANTS = 24,
    MAX_LITERAL = 1 << 11,  /* bytes of a part */
    MAX_NODES = 1 << 14,
    SHAPE_BYTES = 32,       /* shapes begin at a multiple of them, by which they are numbered */
    MAX_SHAPES = 1 << 16,   /* so many times SHAPE_BYTES; where it is reached, all is forgotten and learned anew */
    NODE_SLOTS = 1 << 12,
    FOLLOWER_BITS = 14,
    MAX_CHAIN = 64,         /* nodes in a slot that are looked at */
    MAX_CREDIT = 1 << 13,
    CREDIT_PER_EVENT = 2,
    TRIED_OF = 16,          /* one in so many events is tried where nothing may be learned any more */
};

enum part_kind { PART_END, PART_TS, PART_DUR, PART_INT, PART_SKIPPED };

struct part {
    u16 length;      /* of the literal */
    u8 kind, column; /* of the number behind it */
};

/* A part in the tree. */
struct node {
    const u8 *literal;
    struct part part;
    u16 parent;
    u16 chained; /* the next node in its slot */
    u16 latest;  /* the child that came last */
    u16 shape;   /* of the last part */
    u16 looks;   /* a bit for each of LOOKED_AT by which a child is found */
    u32 middle;  /* of its literal: most others differ there */
};

struct constant {
    i32 column, value;
};

/* An event: its parts, what their literals say, and behind it all that is read in a row: the constants, the literals,
 * and last the nodes they are in. */
struct shape {
    i64 pid, tid;
    i32 cat, name;
    u8 ph;
    u8 num_parts, num_constants;
    u32 literal_bytes;
    struct part parts[];
};

static struct node *nodes; /* from 1 on: 0 is none, and the parent of first parts */
static u8 *shapes;         /* from number 1 on */
static u32 num_nodes, next_shape;
static u16 *node_slots;                   /* the first node in each, by parent and first bytes */
static u16 followers[1 << FOLLOWER_BITS]; /* the shape, by those before */
static u64 history;                       /* a hash of the last shapes */
static u32 credit;                        /* how many events may yet be learned: few where nothing repeats */

static const u8 FIRST_BYTES[32] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};

static void forget_shapes(void) {
    num_nodes = 1;
    next_shape = 1;
    history = 0;
    nodes[0] = (struct node){0};
    __builtin_memset(node_slots, 0, NODE_SLOTS * sizeof *node_slots);
    __builtin_memset(followers, 0, sizeof followers);
}

static int allocate_shapes(void) {
    nodes = allocate((u64)MAX_NODES * sizeof *nodes);
    shapes = allocate((u64)MAX_SHAPES * SHAPE_BYTES + 16); /* literals are readable past their end */
    node_slots = allocate((u64)NODE_SLOTS * sizeof *node_slots);
    if (!nodes || !shapes || !node_slots) return 0;
    forget_shapes();
    credit = MAX_CREDIT;
    return 1;
}

INLINE struct shape *shape_at(u32 number) { return (struct shape *)(shapes + number * SHAPE_BYTES); }
INLINE const u8 *literals_of(const struct shape *s) { return (const u8 *)(s->parts + s->num_parts); }
INLINE const struct constant *constants_of(const struct shape *s) {
    return (const struct constant *)(((u32)literals_of(s) + s->literal_bytes + 3) & ~3u);
}
INLINE const u16 *path_of(const struct shape *s) { return (const u16 *)(constants_of(s) + s->num_constants); }

/* Return whether a part stands at `p`, as far as its number's first digit. */
INLINE int stands_at(const struct part *part, const u8 *literal, const u8 *p, const u8 *end) {
    u32 length = part->length, rest = length & 15, whole = length - rest;
    if (UNLIKELY((u32)(end - p) < length)) return 0;
    v128_t mask = wasm_v128_load(FIRST_BYTES + 16 - rest);
    v128_t differ = wasm_v128_xor(wasm_v128_load(literal + whole), wasm_v128_load(p + whole));
    differ = wasm_v128_and(differ, mask);
    const u8 *stop = p + whole, *q = p;
    for (; q + 32 <= stop; q += 32, literal += 32) {
        v128_t one = wasm_v128_xor(wasm_v128_load(literal), wasm_v128_load(q));
        v128_t two = wasm_v128_xor(wasm_v128_load(literal + 16), wasm_v128_load(q + 16));
        differ = wasm_v128_or(differ, wasm_v128_or(one, two));
    }
    if (q < stop) differ = wasm_v128_or(differ, wasm_v128_xor(wasm_v128_load(literal), wasm_v128_load(q)));
    return !wasm_v128_any_true(differ) && (part->kind == PART_END ? p[length] == ',' : is_digit(p[length]));
}

NOINLINE int node_stands_at(const struct node *n, const u8 *p, const u8 *end) {
    return stands_at(&n->part, n->literal, p, end);
}

/* How many of its first bytes a literal is found by, a half of them for long ones: no more than it has, because a
 * number follows. */
static const u32 LOOKED_AT[] = {0, 8, 64, 192, 512};

enum { NUM_LOOKS = sizeof LOOKED_AT / sizeof *LOOKED_AT };

INLINE u32 look_of(u32 length) {
    u32 look = NUM_LOOKS - 1;
    while (length < LOOKED_AT[look]) look--;
    return look;
}

/* Return the slot of the parts behind a node that begin with `count` bytes as at `p`. */
INLINE u16 *slot_of(u32 parent, const u8 *p, u32 count) {
    u64 h = (parent + ((u64)count << 32)) * 0x9e3779b97f4a7c15ull;
    for (u32 i = 0, step = count > 64 ? 16 : 8; i < count; i += step) {
        h = (h ^ load64(p + i)) * 0xd6e8feb86659fd93ull;
        h ^= h >> 32;
    }
    return &node_slots[(h ^ h >> 20) & (NODE_SLOTS - 1)];
}

/* Return four bytes from the middle of a literal, 0 where it is too short for that. */
INLINE u32 middle_of(const u8 *literal, u32 length) { return length < 8 ? 0 : load32(literal + length / 2); }

/* Return the child of a node that is found by its first `count` bytes and stands at `p`, 0 if none is known. */
static u32 child_of(u32 parent, const u8 *p, const u8 *end, u32 count) {
    u16 *first = slot_of(parent, p, count);
    u32 before = 0, steps = MAX_CHAIN;
    for (u32 found = *first; found && steps--; before = found, found = nodes[found].chained) {
        const struct node *n = &nodes[found];
        if (n->parent != parent || (u32)(end - p) < n->part.length) continue;
        if (middle_of(p, n->part.length) != n->middle || !node_stands_at(n, p, end)) continue;
        if (before) { /* to the front */
            nodes[before].chained = nodes[found].chained;
            nodes[found].chained = *first;
            *first = (u16)found;
        }
        return found;
    }
    return 0;
}

/* Return the child of a node that stands at `p`, 0 if none is known. */
NOINLINE u32 find_child(u32 parent, const u8 *p, const u8 *end) {
    u32 found = 0;
    for (u32 look = 0; look < NUM_LOOKS && !found; look++)
        if (nodes[parent].looks >> look & 1 && (u32)(end - p) >= LOOKED_AT[look])
            found = child_of(parent, p, end, LOOKED_AT[look]);
    return found;
}

/* Return where the shape is kept that follows the last ones. */
INLINE u16 *follower(void) {
    u64 h = history * 0x9e3779b97f4a7c15ull;
    return &followers[(h ^ h >> 29) * 0xd6e8feb86659fd93ull >> (64 - FOLLOWER_BITS)];
}

/* A shape leaves the history when twelve others have come. */
INLINE void note_shape(u32 number) { history = (history << 5) + number * 0x9e3779b1u; }

/* What was read of an event along known parts. */
struct numbers {
    i64 ts, dur, values[MAX_PARTS];
    u8 columns[MAX_PARTS];
    u32 count;
};

/* Read the number behind a part; returns the byte after it, or 0. */
INLINE const u8 *read_number(const struct part *part, const u8 *p, const u8 *end, struct numbers *read) {
    if (part->kind <= PART_DUR) return short_time(p, part->kind == PART_TS ? &read->ts : &read->dur);
    if (UNLIKELY(part->kind == PART_SKIPPED)) return word_end(p, end);
    u64 value;
    p = short_digits(p, &value);
    read->values[read->count] = (i64)value;
    read->columns[read->count++] = part->column;
    return p;
}

NOINLINE const u8 *read_number_behind(const struct node *n, const u8 *p, const u8 *end, struct numbers *read) {
    return read_number(&n->part, p, end, read);
}

/* Go on behind a node along the tree; returns the number of the shape at whose end this arrives, or 0. */
NOINLINE u32 follow_tree(u32 node, const u8 **at, const u8 *end, struct numbers *read) {
    const u8 *p = *at;
    for (;;) {
        u32 next = nodes[node].latest;
        if (!next || !node_stands_at(&nodes[next], p, end)) next = find_child(node, p, end);
        if (UNLIKELY(!next)) return 0;
        nodes[node].latest = (u16)next;
        node = next;
        p += nodes[node].part.length;
        if (nodes[node].part.kind == PART_END) break;
        p = read_number_behind(&nodes[node], p, end, read);
        if (UNLIKELY(!p)) return 0;
    }
    *at = p;
    return nodes[node].shape;
}

/* Read the event at `p` along known parts into its row; returns the byte after it, or 0. */
static const u8 *read_known(const u8 *p, const u8 *end, u32 offset) {
    struct numbers read;
    if (UNLIKELY(!credit && rows % TRIED_OF)) return 0;
    read.ts = read.dur = NONE_NS;
    read.count = 0;
    u16 *slot = follower();
    u32 number = *slot;
    const struct shape *s = shape_at(number);
    u32 node = 0;
    if (LIKELY(number != 0)) {
        const struct part *part = s->parts;
        for (const u8 *literal = literals_of(s);; part++) {
            if (UNLIKELY(!stands_at(part, literal, p, end))) {
                node = part == s->parts ? 0 : path_of(s)[part - s->parts - 1];
                number = 0;
                break;
            }
            p += part->length;
            literal += part->length;
            if (part->kind == PART_END) break;
            p = read_number(part, p, end, &read);
            if (UNLIKELY(!p)) return 0;
        }
    }
    if (UNLIKELY(!number)) {
        number = follow_tree(node, &p, end, &read);
        if (UNLIKELY(!number)) return 0;
        s = shape_at(number);
        *slot = (u16)number;
    }
    note_shape(number);
    col_ph[rows] = s->ph;
    col_cat[rows] = s->cat;
    col_name[rows] = s->name;
    col_pid[rows] = s->pid;
    col_tid[rows] = s->tid;
    col_ts[rows] = read.ts;
    col_dur[rows] = read.dur;
    col_offset[rows] = offset;
    for (u32 i = 0; i < read.count; i++) add_arg(read.columns[i], read.values[i]);
    const struct constant *constant = constants_of(s);
    for (u32 i = s->num_constants; i--; constant++) add_arg(constant->column, constant->value);
    rows++;
    if (credit < MAX_CREDIT) credit += CREDIT_PER_EVENT;
    return p;
}

/* An event cut into parts. */
struct draft {
    const u8 *from; /* up to here it is */
    u32 num_parts, num_constants, literal_bytes;
    struct part parts[MAX_PARTS];
    const u8 *literals[MAX_PARTS];
    struct constant constants[MAX_CONSTANTS];
    u64 columns[MAX_COLUMNS / 64 + 1]; /* those that have a value: a key that comes twice has no fixed place */
    int has_ts, has_dur, has_args;
};

/* End a literal at `p` and go on behind the number there, at `q`. */
static int add_part(struct draft *d, const u8 *p, const u8 *q, enum part_kind kind, u32 column) {
    u32 length = (u32)(p - d->from);
    if (d->num_parts == MAX_PARTS || length > MAX_LITERAL) return 0;
    d->literals[d->num_parts] = d->from;
    d->parts[d->num_parts++] = (struct part){(u16)length, (u8)kind, (u8)column};
    d->literal_bytes += length;
    d->from = q;
    return 1;
}

/* Add the time that goes from `p` to `q`. */
static int add_time(struct draft *d, const u8 *p, const u8 *q, enum part_kind kind) {
    i64 ns;
    return short_time(p, &ns) == q && add_part(d, p, q, kind, 0);
}

/* Add the argument, or other field, whose value goes from `p` to `q`. */
static int add_arg_part(struct draft *d, const struct key *k, const u8 *p, const u8 *q) {
    if (!k) return !is_digit(*p) || add_part(d, p, q, PART_SKIPPED, 0);
    u32 column = (u32)k->column;
    u64 bit = (u64)1 << (column & 63), *seen = &d->columns[column >> 6];
    if (*seen & bit) return 0;
    *seen |= bit;
    u64 digits;
    if (k->kind == ARG_INT && is_digit(*p) && short_digits(p, &digits) == q) return add_part(d, p, q, PART_INT, column);
    u32 n = arg_counts[column];
    if (!n || arg_rows[column * STRIDE + n - 1] != rows - 1) return 1; /* null */
    i64 value = arg_values[column * STRIDE + n - 1];
    if (d->num_constants == MAX_CONSTANTS || value != (i32)value) return 0;
    d->constants[d->num_constants++] = (struct constant){(i32)column, (i32)value};
    return 1;
}

/* Add the object at `p`, the event itself or its arguments; returns the byte after it, or 0 where it has no shape. */
static const u8 *add_object(struct draft *d, const u8 *p, const u8 *end, int is_event) {
    u8 scratch[MAX_UNESCAPED + 16];
    const u8 *text;
    u32 length;
    p++;
    for (const u8 *key = first_key(&p, end); key; key = next_key(&p, end)) {
        const u8 *value = read_key(key, end, scratch, &text, &length);
        if (!value) return 0;
        enum field field = is_event ? field_of(text, length) : F_OTHER;
        int is_args = field == F_ARGS && *value == '{';
        p = is_args ? add_object(d, value, end, 0) : value_end(value, end);
        if (!p) return 0;
        int added = 1;
        if (field == F_ARGS) added = !d->has_args++;
        else if (field == F_TS) added = !d->has_ts++ && add_time(d, value, p, PART_TS);
        else if (field == F_DUR) added = !d->has_dur++ && add_time(d, value, p, PART_DUR);
        else if (field == F_OTHER) added = add_arg_part(d, is_event ? 0 : find_key(text, length), value, p);
        if (!added) return 0;
    }
    return p;
}

/* Return a new shape with what a draft says of the event in this row; 0 if there is no more room. */
static struct shape *add_shape(const struct draft *d, u32 row) {
    u32 bytes = sizeof(struct shape) + d->num_parts * (sizeof(struct part) + sizeof(u16)) + d->literal_bytes + 3 +
                d->num_constants * sizeof(struct constant);
    u32 number = next_shape;
    next_shape += (bytes + SHAPE_BYTES - 1) / SHAPE_BYTES;
    if (next_shape > MAX_SHAPES) return 0;
    struct shape *s = shape_at(number);
    *s = (struct shape){col_pid[row], col_tid[row], col_cat[row], col_name[row], col_ph[row],
                        (u8)d->num_parts, (u8)d->num_constants, d->literal_bytes};
    __builtin_memcpy(s->parts, d->parts, d->num_parts * sizeof(struct part));
    u8 *literal = (u8 *)literals_of(s);
    for (u32 i = 0; i < d->num_parts; literal += d->parts[i++].length)
        __builtin_memcpy(literal, d->literals[i], d->parts[i].length);
    __builtin_memcpy((void *)constants_of(s), d->constants, d->num_constants * sizeof(struct constant));
    return s;
}

/* Return the node with this part behind a parent, made if there is none; 0 if there is no more room. */
static u32 child_with(u32 parent, const struct part *part, const u8 *literal, const u8 *text, const u8 *end) {
    u32 known = find_child(parent, text, end);
    if (known && nodes[known].part.length == part->length) return known;
    if (num_nodes == MAX_NODES) return 0;
    nodes[num_nodes] = (struct node){literal, *part, .parent = (u16)parent, .middle = middle_of(literal, part->length)};
    u32 look = look_of(part->length);
    nodes[parent].looks |= (u16)(1 << look);
    u16 *first = slot_of(parent, literal, LOOKED_AT[look]);
    nodes[num_nodes].chained = *first;
    return *first = (u16)num_nodes++;
}

/* Put the parts of a shape into the tree, as they stand in the draft's text; returns 0 if there is no more room. */
static int add_path(struct shape *s, const struct draft *d, const u8 *end) {
    u16 *path = (u16 *)path_of(s);
    const u8 *literal = literals_of(s);
    u32 node = 0;
    for (u32 i = 0; i < d->num_parts; literal += d->parts[i++].length) {
        node = child_with(node, &s->parts[i], literal, d->literals[i], end);
        if (!node) return 0;
        path[i] = (u16)node;
    }
    nodes[node].shape = (u16)(((u8 *)s - shapes) / SHAPE_BYTES);
    return 1;
}

/* Keep the parts of the event from `p` to `next`, which is in the last row. */
NOINLINE void learn_event(const u8 *p, const u8 *next, const u8 *end) {
    struct draft d;
    u16 *slot = follower();
    if (!credit || *next != ',') return;
    credit--;
    __builtin_memset(&d, 0, sizeof d);
    d.from = p;
    if (add_object(&d, p, next, 1) != next || holds_events || !add_part(&d, next, next, PART_END, 0)) return;
    u32 number = next_shape;
    struct shape *s = add_shape(&d, rows - 1);
    if (!s || !add_path(s, &d, end)) {
        forget_shapes();
        return;
    }
    *slot = (u16)number;
    note_shape(number);
}
