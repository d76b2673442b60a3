/* Events that repeat: what is the same is compared as bytes, and only the numbers are read.
 *
 * A job does the same things step after step, so most events differ from an earlier one in their times and ids alone.
 * The text of an event is cut into parts, each a literal and the number behind it; events that begin alike share their
 * first parts, as the paths of a tree do. The last part of a path knows what all its literals mean, because they were
 * read once the long way, and the same bytes mean the same again. Nothing is stored before the last part fits, so an
 * event that leaves the known paths is read the long way, and its own path is added. */
#pragma once
#include "event.h"

enum {
    MAX_PARTS = 24,         /* of an event */
    MAX_CONSTANTS = 24,
    MAX_LITERAL = 1 << 11,  /* bytes of a part */
    MAX_NODES = 1 << 14,
    MAX_SHAPES = 1 << 12,
    MAX_LITERALS = 1 << 20, /* bytes; where one of these is reached, all is forgotten and learned anew */
    NODE_SLOTS = 1 << 12,
    FOLLOWERS = 1 << 13,
    MAX_CHAIN = 64,         /* nodes in a slot that are looked at */
    MAX_CREDIT = 1 << 13,
    CREDIT_PER_EVENT = 2,
    TRIED_OF = 16,          /* one in so many events is tried where nothing may be learned any more */
};

enum part_kind { PART_END, PART_TS, PART_DUR, PART_INT, PART_SKIPPED };

struct part {
    const u8 *literal; /* readable up to a multiple of 16 bytes */
    u16 length;
    u8 kind, column; /* of the number behind it */
};

/* A part in the tree. */
struct node {
    struct part part;
    u16 parent;
    u16 chained; /* the next node in its slot */
    u16 latest;  /* the child that came last */
    u16 shape;   /* of the last part */
    u16 looks;   /* a bit for each of LOOKED_AT by which a child is found */
    u32 middle;  /* of its literal: most others differ there */
};

/* What the literals of an event say, and the nodes they are in. */
struct shape {
    i64 pid, tid;
    i32 cat, name;
    u8 ph;
    u8 num_constants;
    u16 path[MAX_PARTS];
    struct constant {
        i32 column, value;
    } constants[MAX_CONSTANTS];
};

static struct node *nodes; /* from 1 on: 0 is none, and the parent of first parts */
static struct shape *shapes;
static u8 *literals;
static u32 num_nodes, num_shapes, literals_used;
static u16 *node_slots;              /* the first node in each, by parent and first bytes */
static u16 followers[FOLLOWERS];     /* shape number + 1, by the two shapes before */
static u32 last_shape, shape_before; /* number + 1 */
static u32 credit;                   /* how many events may yet be learned: few where nothing repeats */

static const u8 FIRST_BYTES[32] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};

static void forget_shapes(void) {
    num_nodes = 1;
    num_shapes = literals_used = last_shape = shape_before = 0;
    nodes[0] = (struct node){0};
    __builtin_memset(node_slots, 0, NODE_SLOTS * sizeof *node_slots);
    __builtin_memset(followers, 0, sizeof followers);
}

static int allocate_shapes(void) {
    nodes = allocate((u64)MAX_NODES * sizeof *nodes);
    shapes = allocate((u64)MAX_SHAPES * sizeof *shapes);
    literals = allocate(MAX_LITERALS + 16);
    node_slots = allocate((u64)NODE_SLOTS * sizeof *node_slots);
    if (!nodes || !shapes || !literals || !node_slots) return 0;
    forget_shapes();
    credit = MAX_CREDIT;
    return 1;
}

/* Return whether a part stands at `p`, as far as its number's first digit. */
INLINE int stands_at(const struct part *part, const u8 *p, const u8 *end) {
    u32 length = part->length, rest = length & 15, whole = length - rest;
    if (UNLIKELY((u32)(end - p) < length)) return 0;
    v128_t mask = wasm_v128_load(FIRST_BYTES + 16 - rest);
    v128_t differ = wasm_v128_xor(wasm_v128_load(part->literal + whole), wasm_v128_load(p + whole));
    differ = wasm_v128_and(differ, mask);
    for (u32 i = 0; i < whole; i += 16)
        differ = wasm_v128_or(differ, wasm_v128_xor(wasm_v128_load(part->literal + i), wasm_v128_load(p + i)));
    return !wasm_v128_any_true(differ) && (part->kind == PART_END ? p[length] == ',' : is_digit(p[length]));
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
        if (middle_of(p, n->part.length) != n->middle || !stands_at(&n->part, p, end)) continue;
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

/* Return where the shape is kept that follows the last two. */
INLINE u16 *follower(void) {
    u32 h = last_shape * 0x9e3779b1u ^ shape_before * 0x85ebca6bu;
    return &followers[(h ^ h >> 15) * 0x2c1b3c6du >> 19];
}

INLINE void note_shape(u32 number) {
    shape_before = last_shape;
    last_shape = number + 1;
}

/* Read the event at `p` along known parts into its row; returns the byte after it, or 0. */
static const u8 *read_known(const u8 *p, const u8 *end, u32 offset) {
    i64 values[MAX_PARTS], ts = NONE_NS, dur = NONE_NS;
    u8 columns[MAX_PARTS];
    u32 num_values = 0, parent = 0;
    const struct node *n;
    if (UNLIKELY(!credit && rows % TRIED_OF)) return 0;
    u16 *slot = follower();
    u32 expected = *slot;
    const u16 *path = expected ? shapes[expected - 1].path : 0;
    for (;;) {
        u32 next = path ? *path++ : nodes[parent].latest;
        if (UNLIKELY(!next || !stands_at(&nodes[next].part, p, end))) {
            path = 0;
            next = find_child(parent, p, end);
            if (UNLIKELY(!next)) return 0;
        }
        nodes[parent].latest = (u16)next;
        n = &nodes[next];
        parent = next;
        p += n->part.length;
        if (n->part.kind == PART_END) break;
        if (n->part.kind <= PART_DUR) {
            p = short_time(p, n->part.kind == PART_TS ? &ts : &dur);
            if (UNLIKELY(!p)) return 0;
        } else if (LIKELY(n->part.kind == PART_INT)) {
            u64 value;
            p = short_digits(p, &value);
            values[num_values] = (i64)value;
            columns[num_values++] = n->part.column;
        } else {
            p = word_end(p, end);
        }
    }
    const struct shape *s = &shapes[n->shape];
    *slot = (u16)(n->shape + 1);
    note_shape(n->shape);
    col_ph[rows] = s->ph;
    col_cat[rows] = s->cat;
    col_name[rows] = s->name;
    col_pid[rows] = s->pid;
    col_tid[rows] = s->tid;
    col_ts[rows] = ts;
    col_dur[rows] = dur;
    col_offset[rows] = offset;
    for (u32 i = 0; i < num_values; i++) add_arg(columns[i], values[i]);
    for (u32 i = 0; i < s->num_constants; i++) add_arg(s->constants[i].column, s->constants[i].value);
    rows++;
    if (credit < MAX_CREDIT) credit += CREDIT_PER_EVENT;
    return p;
}

/* An event cut into parts. */
struct draft {
    const u8 *from; /* up to here it is */
    u32 num_parts;
    struct part parts[MAX_PARTS];
    struct shape shape;
    u64 columns[MAX_COLUMNS / 64 + 1]; /* those that have a value: a key that comes twice has no fixed place */
    int has_ts, has_dur, has_args;
};

/* End a literal at `p` and go on behind the number there, at `q`. */
static int add_part(struct draft *d, const u8 *p, const u8 *q, enum part_kind kind, u32 column) {
    u32 length = (u32)(p - d->from);
    if (d->num_parts == MAX_PARTS || length > MAX_LITERAL) return 0;
    d->parts[d->num_parts++] = (struct part){d->from, (u16)length, (u8)kind, (u8)column};
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
    if (d->shape.num_constants == MAX_CONSTANTS || value != (i32)value) return 0;
    d->shape.constants[d->shape.num_constants++] = (struct constant){(i32)column, (i32)value};
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

/* Return the node with this part behind a parent, made if there is none; 0 if there is no more room. */
static u32 child_with(u32 parent, const struct part *part, const u8 *end) {
    u32 known = find_child(parent, part->literal, end);
    if (known && nodes[known].part.length == part->length) return known;
    u32 room = (part->length + 15u) & ~15u;
    if (num_nodes == MAX_NODES || literals_used + room > MAX_LITERALS) return 0;
    u8 *copy = literals + literals_used;
    literals_used += room;
    __builtin_memcpy(copy, part->literal, part->length);
    struct node *n = &nodes[num_nodes];
    *n = (struct node){.part = *part, .parent = (u16)parent, .middle = middle_of(part->literal, part->length)};
    n->part.literal = copy;
    u32 look = look_of(part->length);
    nodes[parent].looks |= (u16)(1 << look);
    u16 *first = slot_of(parent, part->literal, LOOKED_AT[look]);
    n->chained = *first;
    return *first = (u16)num_nodes++;
}

/* Keep the parts of the event from `p` to `next`, which is in the last row. */
NOINLINE void learn_event(const u8 *p, const u8 *next, const u8 *end) {
    struct draft d;
    u32 row = rows - 1;
    u16 *slot = follower();
    last_shape = 0;
    if (!credit || *next != ',') return;
    credit--;
    __builtin_memset(&d, 0, sizeof d);
    d.from = p;
    d.shape = (struct shape){col_pid[row], col_tid[row], col_cat[row], col_name[row], .ph = col_ph[row]};
    if (add_object(&d, p, next, 1) != next || holds_events || !add_part(&d, next, next, PART_END, 0)) return;
    u32 node = 0;
    for (u32 i = 0; i < d.num_parts; i++) {
        node = child_with(node, &d.parts[i], end);
        if (!node || num_shapes == MAX_SHAPES) {
            forget_shapes();
            return;
        }
        d.shape.path[i] = (u16)node;
    }
    nodes[node].shape = (u16)num_shapes;
    shapes[num_shapes] = d.shape;
    *slot = (u16)(num_shapes + 1);
    last_shape = num_shapes++ + 1;
}
