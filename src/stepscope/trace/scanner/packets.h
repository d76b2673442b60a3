/* Perfetto traces: packets of protobuf into rows, with phases of our own that the host turns into those of JSON.
 *
 *     B i C       a slice, an instant, a counter: `pid` is the number of its track
 *     X           work of a GPU, with its duration: `pid` is the GPU, `tid` its queue
 *     P T N       a process (`ts` its number), a thread (`ts` its process, `dur` its number), another track; `pid` is the
 *                 number of the track, `tid` that of the track above it, the argument `label` the name
 *
 * Marks (`slices.h`) are what is no row: what is to be added to all times to get the time of day, compressed packets,
 * which are not read, and where packets were lost.
 *
 * Field numbers are those of protos/perfetto/trace/ in the Perfetto project. A packet is framed by its length, so one
 * whose fields make no sense is dropped alone; where the framing is lost, the next packet that proves to be one is
 * searched. */
#pragma once
#include "recover.h"
#include "repeats.h"
#include "slices.h"

enum {
    MAX_PACKET = 32 << 20,
    MAX_LOST_PACKET = 1 << 16, /* where packets are searched */
    MAX_NESTED = 16,
    MAX_JSON = MAX_TEXT + 64,
    MAX_INTERNED = 4 << 20, /* names, tracks and sequences of a file */
    MAX_SEQUENCES = 1 << 12,
    NUM_CLOCKS = 64, /* of all sequences; the others belong to one */
    OWN_CLOCKS = 4,
    REAL_TIME = 1,
    BOOT_TIME = 6,
};
enum interned { CATEGORY = 1, EVENT_NAME, ARG_NAME, TEXT_VALUE, GPU_STAGE, GPU_KERNEL, LAUNCH_ARG, TRACK, SEQUENCE, ARG_KEY };
enum packet_phase { BEGINS = 1, ENDS, IS_INSTANT, COUNTS };

/* What numbers stand for, in one table: of a sequence since its state was cleared, or (owner 0) of the file. */
static struct meaning {
    u64 number;
    u32 owner; /* state of the sequence << 4 | kind */
    i32 what;
} *meanings;
static u32 meaning_slots, num_meanings, num_states, num_changed;

static struct sequence {
    u32 state, default_clock;
    u64 default_track;
    struct clock {
        u32 id, is_incremental;
        u64 unit_ns;
        i64 offset_ns, last_ns;
    } clocks[OWN_CLOCKS];
} *sequences;
static u32 num_sequences;
static struct { int known; i64 offset_ns; } shared_clocks[NUM_CLOCKS];
static i32 label_column, correlation_column, device_column, stream_column, grid_column, block_column;

static u32 meaning_at(u64 number, u32 owner) {
    u64 h = (number ^ (u64)owner << 32) * 0x9e3779b97f4a7c15ull;
    u32 at = (u32)((h ^ h >> 29) * 0xd6e8feb86659fd93ull >> 32) & (meaning_slots - 1), probes = 0;
    while (meanings[at].owner && (meanings[at].number != number || meanings[at].owner != owner)) {
        if (UNLIKELY(++probes > MAX_PROBES)) { exhausted = 1; break; }
        at = (at + 1) & (meaning_slots - 1);
    }
    return at;
}

static struct meaning recent_meanings[1 << 10];

INLINE struct meaning *recent_meaning(u64 number, u32 owner) {
    return recent_meanings + ((number ^ owner * 67) & 1023);
}

static int grow_meanings(void) {
    struct meaning *old = meanings;
    u32 count = meaning_slots;
    meaning_slots = count ? 2 * count : 1 << 12;
    meanings = allocate((u64)meaning_slots * sizeof *meanings);
    if (!meanings || num_meanings > MAX_INTERNED) { exhausted = 1; meanings = old; meaning_slots = count; return 0; }
    __builtin_memset(meanings, 0, meaning_slots * sizeof *meanings);
    for (u32 i = 0; i < count; i++)
        if (old[i].owner) meanings[meaning_at(old[i].number, old[i].owner)] = old[i];
    return 1;
}

static void set_meaning(u64 number, u32 owner, i32 what) {
    recent_meaning(number, owner)->owner = 0;
    if (2 * num_meanings >= meaning_slots && !grow_meanings()) return;
    u32 at = meaning_at(number, owner);
    if (meanings[at].owner && meanings[at].what != what) {
        clear_repeats();
        num_changed++;
    }
    num_meanings += !meanings[at].owner;
    meanings[at] = (struct meaning){number, owner, what};
}

/* The same, with a look at what was found lately. */
INLINE i32 meaning_of(u64 number, u32 owner) {
    struct meaning *r = recent_meaning(number, owner);
    if (LIKELY(r->number == number && r->owner == owner)) return r->what;
    const struct meaning *m = meanings + meaning_at(number, owner);
    if (!m->owner) { draft_packet.cacheable = 0; return NO_STRING; }
    r->number = number;
    r->owner = owner;
    return r->what = m->what;
}

INLINE i32 interned_text(const struct sequence *s, enum interned kind, u64 number) {
    return meaning_of(number, s->state << 4 | kind);
}

static i32 track_number(u64 uuid) {
    i32 track = meaning_of(uuid, TRACK);
    if (UNLIKELY(track == NO_STRING)) {
        set_meaning(uuid, TRACK, track = (i32)tracks.count);
        add_mark(&tracks, INT64_MIN, 0, 0);
        if (UNLIKELY(exhausted)) return 0;
    }
    return track;
}

static struct sequence *sequence_of(u64 id) {
    static u64 last_id = ~(u64)0;
    static struct sequence *last;
    if (LIKELY(id == last_id)) return last;
    i32 number = meaning_of(id, SEQUENCE);
    if (UNLIKELY(number == NO_STRING)) {
        if (num_sequences == MAX_SEQUENCES) { exhausted = 1; return sequences; }
        number = (i32)num_sequences++;
        sequences[number] = (struct sequence){.state = ++num_states};
        set_meaning(id, SEQUENCE, number);
    }
    last_id = id;
    return last = sequences + number;
}

static const struct key *key_named(const u8 *p, u32 length) { return length > MAX_KEY_LENGTH ? 0 : find_key(p, length); }

static i32 text_of(const struct wire *w) { return intern(w->bytes, (u32)w->value, 0); }

INLINE void add_row(u8 ph, i32 cat, i32 name, i64 pid, i64 tid, i64 ts, i64 dur) {
    col_ph[rows] = ph;
    col_cat[rows] = cat;
    col_name[rows] = name;
    col_pid[rows] = pid;
    col_tid[rows] = tid;
    col_ts[rows] = ts;
    col_dur[rows] = dur;
    col_offset[rows] = 0;
    rows++;
}

static struct clock *own_clock(struct sequence *s, u32 id) {
    for (u32 i = 0; i < OWN_CLOCKS; i++)
        if (s->clocks[i].id == id || !s->clocks[i].id) return &s->clocks[i];
    return 0;
}

static void take_clocks(const u8 *p, const u8 *end, struct sequence *s) {
    struct { u32 id, is_incremental; u64 time, unit_ns; } found[16], *c = found;
    struct wire snapshot, w;
    EACH_FIELD(p, end, snapshot) {
        if (snapshot.number != 1 || !snapshot.bytes || c == found + 16) continue;
        const u8 *q = snapshot.bytes, *stop = q + snapshot.value;
        c->id = c->is_incremental = 0;
        c->time = 0;
        c->unit_ns = 1;
        EACH_FIELD(q, stop, w) {
            if (w.number == 1) c->id = (u32)w.value;
            if (w.number == 2) c->time = w.value;
            if (w.number == 3) c->is_incremental = w.value != 0;
            if (w.number == 4 && w.value && w.value < 1 << 30) c->unit_ns = w.value;
        }
        if (c->id) c++;
    }
    if (c == found) return;
    i64 now = 0; /* on the clock of the trace: boot time, else the first that there is */
    int known = 0;
    for (u32 i = 0; i < (u32)(c - found); i++) {
        u32 id = found[i].id;
        if (id < NUM_CLOCKS && (shared_clocks[id].known || id == BOOT_TIME) && (!known || id == BOOT_TIME)) {
            now = (i64)((u64)found[i].time + (u64)shared_clocks[id].offset_ns);
            known = 1;
        }
    }
    if (!known) now = (i64)(found[0].time * found[0].unit_ns);
    for (u32 i = 0; i < (u32)(c - found); i++) {
        u64 ns = found[i].time * found[i].unit_ns;
        i64 offset_ns = (i64)((u64)now - ns);
        u32 id = found[i].id;
        if (id >= NUM_CLOCKS) {
            struct clock *own = own_clock(s, id);
            if (own) *own = (struct clock){id, found[i].is_incremental, found[i].unit_ns, offset_ns, (i64)ns};
        } else if (!shared_clocks[id].known) {
            shared_clocks[id].known = 1;
            shared_clocks[id].offset_ns = offset_ns;
            if (id == REAL_TIME) add_mark(&marks, (i64)(0 - (u64)offset_ns), 0, CLOCK);
        }
    }
}

INLINE i64 time_of(struct sequence *s, u32 id, u64 time) {
    if (!id) id = s->default_clock;
    if (id < NUM_CLOCKS) return (i64)(time + (u64)shared_clocks[id].offset_ns);
    struct clock *c = own_clock(s, id);
    if (!c || !c->id) return (i64)time;
    u64 ns = time * c->unit_ns;
    if (c->is_incremental) c->last_ns = (i64)(ns += (u64)c->last_ns);
    return (i64)(ns + (u64)c->offset_ns);
}

/* Values of arguments: as JSON has them, so that both give the same text. */

static u8 *json, *json_end;
static int json_cut;

/* A byte at a time: copies of a few bytes whose number is not constant are calls out of the module. */
INLINE void put_bytes(const void *bytes, u32 length) {
    if (UNLIKELY(length > (u32)(json_end - json))) { json_cut = 1; length = (u32)(json_end - json); }
    for (const u8 *p = bytes; length--;) *json++ = *p++;
}

static void put_digits(u64 value, u32 least) {
    u8 digits[20];
    u32 n = 0;
    while (value || n < least) { digits[19 - n++] = (u8)('0' + value % 10); value /= 10; }
    put_bytes(digits + 20 - n, n);
}

static void put_signed(i64 value) {
    if (value < 0) put_bytes("-", 1);
    put_digits(value < 0 ? 0 - (u64)value : (u64)value, 1);
}

static const double TOO_LARGE = 9007199254740992.0;

/* Nine decimals: of arguments alone, no time is one. */
static void put_double(double value) {
    if (!(value < TOO_LARGE && value > -TOO_LARGE)) { put_bytes("NaN", 3); return; }
    if (value < 0) { put_bytes("-", 1); value = -value; }
    u64 whole = (u64)value, rest = (u64)((value - (double)whole) * 1e9 + 0.5);
    if (rest >= 1000000000) { rest = 0; whole++; }
    put_digits(whole, 1);
    if (!rest) return;
    put_bytes(".", 1);
    put_digits(rest, 9);
    while (json[-1] == '0') json--;
}

static void put_quoted(const u8 *p, u32 length) {
    static const u8 hex[] = "0123456789abcdef";
    put_bytes("\"", 1);
    for (const u8 *end = p + length; p < end && !json_cut; p++) {
        if (LIKELY(*p >= ' ' && *p != '"' && *p != '\\')) put_bytes(p, 1);
        else if (*p >= ' ') put_bytes((u8[2]){'\\', *p}, 2);
        else put_bytes((u8[6]){'\\', 'u', '0', '0', hex[*p >> 4], hex[*p & 15]}, 6);
    }
    put_bytes("\"", 1);
}

enum value_kind { EMPTY, WHOLE, REAL, BOOLEAN, STRING, NESTED };

struct annotation {
    enum value_kind kind;
    i32 name, text; /* of interned ones */
    const u8 *name_bytes, *bytes;
    u32 name_length, length;
    u64 value;
};

static int read_annotation(const u8 *p, const u8 *end, const struct sequence *s, struct annotation *a) {
    struct wire w;
    a->kind = EMPTY; /* field by field: more than 16 bytes at once are set by a call out of the module */
    a->name = a->text = NO_STRING;
    a->name_bytes = 0;
    EACH_FIELD_OF_MANY(p, end, w) {
        switch (w.number) {
        case 1: a->name = interned_text(s, ARG_NAME, w.value); break;
        case 10: a->name_bytes = w.bytes; a->name_length = (u32)w.value; break;
        case 2: a->kind = BOOLEAN; a->value = w.value; break;
        case 3: case 4: case 7:
            a->kind = w.number == 3 && w.value >> 63 ? REAL : WHOLE; /* beyond what a column holds: out of range */
            a->value = w.value;
            break;
        case 5: a->kind = REAL; a->value = w.value; break;
        case 6: case 9:
            if (!w.bytes) return 0;
            a->kind = STRING; a->bytes = w.bytes; a->length = (u32)w.value;
            break;
        case 17: a->kind = STRING; a->text = interned_text(s, TEXT_VALUE, w.value); a->bytes = 0; break;
        case 11: case 12: a->kind = NESTED; a->value = w.number; break;
        }
    }
    if (a->name != NO_STRING && !a->name_bytes) {
        a->name_bytes = texts[a->name].bytes;
        a->name_length = texts[a->name].length;
    }
    if (a->kind == STRING && !a->bytes) {
        if (a->text == NO_STRING) a->kind = EMPTY;
        else { a->bytes = texts[a->text].bytes; a->length = texts[a->text].length; }
    }
    return p >= end;
}

static double real_value(const struct annotation *a) {
    double value;
    __builtin_memcpy(&value, &a->value, 8);
    return value;
}

static void put_json(const u8 *p, const u8 *end, const struct sequence *s, const struct annotation *a, u32 depth) {
    switch (a->kind) {
    case WHOLE: put_signed((i64)a->value); return;
    case REAL: put_double(real_value(a)); return;
    case BOOLEAN: put_bytes(a->value ? "true" : "false", a->value ? 4 : 5); return;
    case STRING: put_quoted(a->bytes, a->length); return;
    case EMPTY: put_bytes("[]", 2); return; /* an empty list has no fields */
    case NESTED: break;
    }
    int is_list = a->value == 12, first = 1;
    struct wire w;
    struct annotation member;
    put_bytes(is_list ? "[" : "{", 1);
    EACH_FIELD(p, end, w) {
        if (w.number != a->value || !w.bytes || json_cut || depth == MAX_NESTED) continue;
        if (!read_annotation(w.bytes, w.bytes + w.value, s, &member)) continue;
        if (!first) put_bytes(", ", 2);
        first = 0;
        if (!is_list) { put_quoted(member.name_bytes, member.name_length); put_bytes(": ", 2); }
        put_json(w.bytes, w.bytes + w.value, s, &member, depth + 1);
    }
    put_bytes(is_list ? "]" : "}", 1);
}

/* Return the number of the text that JSON would have for a value. */
static i32 json_text(const u8 *p, const u8 *end, const struct sequence *s, const struct annotation *a) {
    static u8 buffer[MAX_JSON];
    json = buffer;
    json_end = buffer + MAX_TEXT;
    json_cut = 0;
    put_json(p, end, s, a, 0);
    u32 flags = buffer[0] == '[' || buffer[0] == '{' ? TEXT_JSON : 0;
    return intern(buffer, (u32)(json - buffer), flags | (json_cut ? TEXT_SHORTENED : 0));
}

/* Store the value of an annotation. */
INLINE void take_value(i32 column, i64 value) {
    if (UNLIKELY(has_arg(column))) draft_packet.cacheable = 0; /* duplicate keys: their order determines the value */
    put_arg(column, value);
}

/* Put the value of an argument; returns the number of its text, NO_STRING where the column has none. */
static i32 put_value(const struct key *k, const u8 *p, const u8 *end, const struct sequence *s, struct annotation *a) {
    u8 digits[32];
    if (k->kind != ARG_INT) {
        i32 text = a->kind != STRING ? json_text(p, end, s, a)
                 : a->text != NO_STRING ? a->text : intern(a->bytes, a->length, 0);
        take_value(k->column, text);
        return text;
    }
    i64 value = (i64)a->value;
    if (a->kind == STRING && a->length < sizeof digits) { /* it may be followed by digits of something else */
        __builtin_memcpy(digits, a->bytes, sizeof digits);
        digits[a->length] = '"';
        if (integer_in_text(digits, digits + a->length, &value)) a->kind = WHOLE;
    } else if (a->kind == REAL) {
        double real = real_value(a);
        value = real < TOO_LARGE && real > -TOO_LARGE ? (i64)real : 0;
        if ((double)value == real) a->kind = WHOLE;
    }
    if (a->kind == WHOLE) take_value(k->column, value);
    else counts.bad_args++;
    return NO_STRING;
}

/* Annotations that came lately, by their bytes: shapes, types and names repeat. */
enum { LATELY = 1 << 11, MIN_LATELY = 8, MAX_LATELY = 480 };
static struct lately {
    u32 length, state, num_changed;
    i32 column, text; /* NO_STRING: no argument of ours */
    u8 bytes[MAX_LATELY + 16];
} *lately;

INLINE struct lately *lately_at(const u8 *p, u32 length) {
    u64 h = (load64(p) ^ load64(p + length - 8) * 31 ^ load64(p + length / 2) * 0x9e3779b97f4a7c15ull) + length;
    return lately + (h * 0xd6e8feb86659fd93ull >> 53);
}

/* Take an annotation of a name and a whole number or an interned text; returns 0 if it is another. */
INLINE int take_short_annotation(const u8 *p, const u8 *end, const struct sequence *s) {
    const struct key *k;
    u64 value;
    if (*p == 0x08) {
        p = varint(p + 1, &value);
        if (UNLIKELY(!p)) return 0;
        i32 number = interned_text(s, ARG_KEY, value);
        k = number == NO_STRING ? 0 : &keys[number];
    } else {
        if (*p != 0x52 || p[1] > MAX_KEY_LENGTH || end - p < p[1] + 4) return 0;
        k = find_key(p + 2, p[1]);
        p += p[1] + 2;
    }
    u32 is_text = *p == 0x88 && p[1] == 1, is_whole = *p == 0x18 || *p == 0x20;
    if (!is_text && !is_whole) return 0;
    u32 is_unsigned = *p == 0x18;
    const u8 *from = p + 1 + is_text;
    p = varint(from, &value);
    if (UNLIKELY(p != end)) return 0;
    if (k && ((k->kind == ARG_INT) != is_whole || (is_unsigned && value >> 63))) return 0;
    if (is_whole) note_number(from, end, SEVENS, k ? (u32)k->column : OF_NOTHING);
    if (!k) return 1;
    i64 what = is_text ? interned_text(s, TEXT_VALUE, value) : (i64)value;
    if (is_whole || what != NO_STRING) take_value(k->column, what);
    return is_whole || what != NO_STRING;
}

static void take_annotation(const u8 *p, const u8 *end, const struct sequence *s) {
    if (LIKELY(take_short_annotation(p, end, s))) return;
    struct annotation a;
    u32 length = (u32)(end - p);
    struct lately *known = length >= MIN_LATELY && length <= MAX_LATELY ? lately_at(p, length) : 0;
    int is_current = known && known->state == s->state && known->num_changed == num_changed;
    if (is_current && known->length == length && same_bytes(known->bytes, p, length)) {
        if (known->text != NO_STRING) take_value(known->column, known->text);
        return;
    }
    if (!read_annotation(p, end, s, &a)) { counts.bad_args++; return; }
    if (!a.name_bytes) return;
    const struct key *k = key_named(a.name_bytes, a.name_length);
    i32 text = k ? put_value(k, p, end, s, &a) : NO_STRING;
    if (!known || (k && text == NO_STRING)) return;
    known->length = length;
    known->state = s->state;
    known->num_changed = num_changed;
    known->column = k ? k->column : 0;
    known->text = text;
    for (u32 i = 0; i < length; i += 16) wasm_v128_store(known->bytes + i, wasm_v128_load(p + i));
}

NOINLINE void take_track_event(const u8 *p, const u8 *end, const struct sequence *s, i64 ts) {
    static const u8 phases[] = {0, 'B', 0, 'i', 'C'};
    struct wire w;
    u32 type = 0, has_flow = 0, has_args = 0, bad_args = counts.bad_args;
    i32 cat = NO_STRING, name = NO_STRING;
    u64 track = s->default_track, flow = 0;
    const u8 *flow_end = 0;
    EACH_FIELD_OF_MANY(p, end, w) {
        if (w.number == 4) {
            if (w.bytes) { has_args = 1; take_annotation(w.bytes, w.bytes + w.value, s); }
        } else if (w.number == 9) type = w.value <= COUNTS ? (u32)w.value : 0;
        else if (w.number == 11) track = w.value;
        else if (w.number == 10) name = interned_text(s, EVENT_NAME, w.value);
        else if (w.number == 3) {
            if (w.bytes && !varint(w.bytes, &w.value)) continue; /* packed: the first of them */
            if (cat == NO_STRING) cat = interned_text(s, CATEGORY, w.value);
        } else if (w.number == 23) {
            if (w.bytes) name = text_of(&w);
        } else if (w.number == 22) {
            if (w.bytes && cat == NO_STRING) cat = text_of(&w);
        } else if (w.number == 36 || w.number == 47 || w.number == 42 || w.number == 48) {
            has_flow = !w.bytes;
            flow = w.value;
            if (flow_end || (*p & 7) != 1) draft_packet.cacheable = 0;
            flow_end = next_w;
        }
    }
    if (UNLIKELY(p < end)) { counts.malformed++; type = 0; }
    draft_packet.cacheable &= counts.bad_args == bad_args;
    if (!type || type == ENDS) {
        draft_packet.cacheable &= type && !has_args && !flow_end;
        if (has_args) forget_args();
        counts.bad_args = bad_args;
        if (type) note_end(draft_packet.track = track_number(track), ts);
        return;
    }
    i32 number = track_number(track);
    if (flow_end) note_number(flow_end - 8, flow_end, FIXED, has_arg(correlation_column) ? OF_NOTHING : OF_FLOW);
    if (has_flow && !has_arg(correlation_column)) add_arg(correlation_column, (i64)(flow & INT64_MAX));
    if (type == BEGINS) note_begin(number, ts);
    add_row(phases[type], cat, name, number, 0, ts, NONE_NS);
}

static void take_track(const u8 *p, const u8 *end) {
    struct wire w, inner;
    u64 uuid = 0, above = 0, pid = 0, tid = 0;
    i32 name = NO_STRING;
    u8 ph = 'N';
    EACH_FIELD(p, end, w) {
        if (w.number == 1) uuid = w.value;
        if (w.number == 5) above = w.value;
        if (!w.bytes) continue;
        const u8 *q = w.bytes, *stop = q + w.value;
        if ((w.number == 2 || w.number == 10 || w.number == 13) && name == NO_STRING) name = text_of(&w);
        if (w.number != 3 && w.number != 4) continue;
        ph = w.number == 3 && ph == 'N' ? 'P' : 'T';
        EACH_FIELD(q, stop, inner) {
            if (inner.number == 1) pid = inner.value;
            if (inner.number == 2 && w.number == 4) tid = inner.value;
            if (inner.number == (w.number == 3 ? 6u : 5u) && inner.bytes && inner.value) name = text_of(&inner);
        }
    }
    if (UNLIKELY(p < end)) { counts.malformed++; return; }
    if (name != NO_STRING) put_arg(label_column, name);
    add_row(ph, NO_STRING, name, track_number(uuid), track_number(above), (i64)pid, (i64)tid);
}

static void take_interned(const u8 *p, const u8 *end, const struct sequence *s) {
    struct wire w, inner;
    EACH_FIELD(p, end, w) {
        u32 kind = w.number == 1 ? CATEGORY : w.number == 2 ? EVENT_NAME : w.number == 3 ? ARG_NAME
                 : w.number == 29 ? TEXT_VALUE : w.number == 24 ? GPU_STAGE : w.number == 1000 ? GPU_KERNEL
                 : w.number == 1001 ? LAUNCH_ARG : 0;
        if (!kind || !w.bytes) continue;
        const u8 *q = w.bytes, *stop = q + w.value;
        u64 number = 0;
        i32 text = NO_STRING;
        EACH_FIELD(q, stop, inner) {
            if (inner.number == 1) number = inner.value;
            if (inner.bytes && (inner.number == 2 || (inner.number == 3 && kind == GPU_KERNEL))) text = text_of(&inner);
        }
        if (text == NO_STRING) continue;
        set_meaning(number, s->state << 4 | kind, text);
        if (kind == ARG_NAME) {
            const struct key *k = key_named(texts[text].bytes, texts[text].length);
            set_meaning(number, s->state << 4 | ARG_KEY, k ? (i32)(k - keys) : NO_STRING);
        }
    }
}

/* Return the number at the end of a text, or -1. */
static i64 last_number(i32 text) {
    if (text == NO_STRING) return -1;
    const struct text *t = &texts[text];
    u32 at = t->length;
    while (at && is_digit(t->bytes[at - 1])) at--;
    if (at == t->length || t->length - at > 9) return -1;
    u64 value;
    short_digits(t->bytes + at, &value);
    return (i64)value;
}

static void take_launch(const u8 *p, const u8 *end, const struct sequence *s) {
    struct wire w, inner;
    EACH_FIELD(p, end, w) {
        if (!w.bytes) continue;
        const u8 *q = w.bytes, *stop = q + w.value;
        if (w.number == 3) {
            struct annotation a = {.kind = EMPTY, .name = NO_STRING, .text = NO_STRING};
            EACH_FIELD(q, stop, inner) {
                if (inner.number == 1) a.name = interned_text(s, LAUNCH_ARG, inner.value);
                if (inner.number == 3 || inner.number == 4) { a.kind = WHOLE; a.value = inner.value; }
            }
            const struct key *k = a.name == NO_STRING ? 0 : key_named(texts[a.name].bytes, texts[a.name].length);
            if (k && a.kind == WHOLE) put_value(k, q, q, s, &a);
            continue;
        }
        u64 size[4] = {0};
        u8 text[80];
        EACH_FIELD(q, stop, inner) if (inner.number < 4) size[inner.number] = inner.value & 0xffffffff;
        json = text;
        json_end = text + sizeof text;
        put_bytes("[", 1);
        for (u32 i = 1; i < 4; i++) { put_digits(size[i], 1); put_bytes(i < 3 ? ", " : "]", i < 3 ? 2 : 1); }
        put_arg(w.number == 1 ? grid_column : block_column, intern(text, (u32)(json - text), TEXT_JSON));
    }
}

/* Take a value of a GPU event that is named and written as texts. */
static void take_extra(const u8 *p, const u8 *end, const struct sequence *s) {
    struct wire w, name = {0}, text = {0};
    u64 value;
    EACH_FIELD_OF_MANY(p, end, w) {
        if (!w.bytes || (w.number == 1 && w.value > MAX_KEY_LENGTH)) break;
        if (w.number == 1) name = w;
        if (w.number == 2) text = w;
    }
    const struct key *k = name.value && text.bytes ? find_key(name.bytes, (u32)name.value) : 0;
    if (!k && text.bytes) note_number(text.bytes, text.bytes + text.value, ANYTHING, OF_NOTHING);
    if (!k) return;
    if (k->kind == ARG_INT && digits_alone(text.bytes, (u32)text.value, &value)) {
        note_number(text.bytes, text.bytes + text.value, DIGITS, (u32)k->column);
        take_value(k->column, (i64)value);
        return;
    }
    struct annotation a = {.kind = STRING, .text = NO_STRING, .bytes = text.bytes, .length = (u32)text.value};
    put_value(k, p, p, s, &a);
}

NOINLINE void take_gpu_event(const u8 *p, const u8 *end, const struct sequence *s, i64 ts) {
    struct wire w;
    i32 stage = NO_STRING, queue = NO_STRING, name = NO_STRING, kernel = NO_STRING;
    u64 duration = 0, device = 0, event = 0;
    u32 bad_args = counts.bad_args;
    EACH_FIELD_OF_MANY(p, end, w) {
        switch (w.number) {
        case 1:
            event = w.value;
            draft_packet.cacheable &= *p == 0x08;
            note_number(p + 1, next_w, SEVENS, OF_EVENT);
            break;
        case 2:
            duration = w.value;
            draft_packet.cacheable &= *p == 0x10;
            note_number(p + 1, next_w, SEVENS, OF_DURATION);
            break;
        case 6: if (w.bytes) take_extra(w.bytes, w.bytes + w.value, s); break;
        case 11: device = w.value; break;
        case 13: queue = interned_text(s, GPU_STAGE, w.value); break;
        case 14: stage = interned_text(s, GPU_STAGE, w.value); break;
        case 17: if (w.bytes) name = text_of(&w); break;
        case 19: kernel = interned_text(s, GPU_KERNEL, w.value); break;
        case 20: name = interned_text(s, EVENT_NAME, w.value); break;
        case 21: if (w.bytes) take_launch(w.bytes, w.bytes + w.value, s); break;
        }
    }
    if (UNLIKELY(p < end || (i64)duration < 0)) {
        forget_args();
        counts.bad_args = bad_args;
        if (p < end) counts.malformed++;
        else counts.bad_time++;
        draft_packet.cacheable = 0;
        return;
    }
    draft_packet.cacheable &= counts.bad_args == bad_args;
    i64 stream = last_number(queue);
    if (stream >= 0 && !has_arg(stream_column)) add_arg(stream_column, stream);
    if (!has_arg(device_column)) add_arg(device_column, (i64)(i32)device);
    if (event && !(event >> 63) && !has_arg(correlation_column)) add_arg(correlation_column, (i64)event);
    else draft_packet.cacheable = 0;
    if (name == NO_STRING) name = kernel == NO_STRING ? stage : kernel;
    i64 tid = stream >= 0 || queue == NO_STRING ? stream : STRING_ID_BASE + queue;
    add_row('X', stage, name, (i64)(i32)device, tid, ts, (i64)duration);
}

static void take_defaults(const u8 *p, const u8 *end, struct sequence *s) {
    struct wire w, inner;
    clear_repeats();
    EACH_FIELD(p, end, w) {
        if (w.number == 58) s->default_clock = (u32)w.value;
        if (w.number != 11 || !w.bytes) continue;
        const u8 *q = w.bytes, *stop = q + w.value;
        EACH_FIELD(q, stop, inner) if (inner.number == 11) s->default_track = inner.value;
    }
}

/* Fields of a packet, by their numbers: what was last read of each. */
enum packet_field { UNUSED, TIME, TIME_CLOCK, SEQUENCE_ID, SEQUENCE_FLAGS, CLEARED, LOST_BEFORE, EVENT, INTERNED, DEFAULTS, CLOCKS };
static const u8 packet_fields[136] = {
    [6] = CLOCKS, [8] = TIME, [10] = SEQUENCE_ID, [11] = EVENT, [12] = INTERNED, [13] = SEQUENCE_FLAGS, [41] = CLEARED,
    [42] = LOST_BEFORE, [50] = EVENT, [53] = EVENT, [58] = TIME_CLOCK, [59] = DEFAULTS, [60] = EVENT, [133] = EVENT,
};
static struct wire latest[CLOCKS + 1];

INLINE u64 latest_value(u32 seen, enum packet_field field) { return seen >> field & 1 ? latest[field].value : 0; }
INLINE const u8 *latest_bytes(u32 seen, enum packet_field field) { return seen >> field & 1 ? latest[field].bytes : 0; }

/* Fields of cacheable packets: none affects other packets; a list of interned names has to be empty. */
enum {
    REPEATING = 1 << UNUSED | 1 << TIME | 1 << TIME_CLOCK | 1 << SEQUENCE_ID | 1 << SEQUENCE_FLAGS | 1 << EVENT |
                1 << INTERNED
};

/* Cache the packet that was just parsed. */
NOINLINE void cache_packet(const u8 *p, const u8 *end, const struct sequence *s, u32 clock) {
    struct constant constants[MAX_COLUMNS];
    u64 read[MAX_COLUMNS / 64 + 1] = {0};
    u32 row = rows - 1, count = 0, is_end = draft_packet.track >= 0;
    if (end - p > MAX_REPEATED || exhausted) return;
    for (u32 i = 0; i < draft_packet.num_numbers; i++) {
        u32 of = draft_packet.numbers[i].column;
        u32 column = of == OF_FLOW || of == OF_EVENT ? (u32)correlation_column : of;
        read[column / 64] |= (u64)1 << column % 64;
    }
    for (u32 column = 0; !is_end && column < num_columns; column++) {
        u32 n = arg_counts[column], at = column * STRIDE + n - 1;
        if (!n || arg_rows[at] != row || read[column / 64] >> column % 64 & 1) continue;
        if (arg_values[at] != (i32)arg_values[at]) return;
        constants[count++] = (struct constant){(i32)column, (i32)arg_values[at]};
    }
    struct repeat about = {.sequence = (u32)(s - sequences), .clock = clock, .pid = draft_packet.track,
                           .name = NO_STRING, .length = (u16)(end - p), .num_constants = (u8)count};
    if (!is_end) {
        about.ph = col_ph[row];
        about.cat = col_cat[row];
        about.name = col_name[row];
        about.pid = col_pid[row];
        about.tid = col_tid[row];
    }
    about.content_hash = (u32)about.name * 31 + (u32)about.pid * 4 + about.ph;
    for (u32 i = 0; i < count; i++) about.content_hash = about.content_hash * 0x9e3779b1u + (u32)constants[i].value;
    learn_packet(p, &about, constants);
}

/* Read a packet through the cache; returns 0 on a miss. */
INLINE int take_repeated(const u8 *p, u32 length) {
    const struct repeat *r = repeated(p, length);
    if (UNLIKELY(!r)) return 0;
    u64 values[MAX_NUMBERS];
    const struct number_at *n = r->numbers;
    for (u32 i = 0; i < r->num_numbers; i++, n++) {
        const u8 *from = p + n->at;
        if (LIKELY(n->spelling == SEVENS)) varint(from, &values[i]);
        else if (n->spelling == FIXED) values[i] = load64(from);
        else if (n->spelling == DIGITS && !digits_alone(from, n->length, &values[i])) return 0;
    }
    i64 ts = NONE_NS, dur = NONE_NS;
    n = r->numbers;
    for (u32 i = 0; i < r->num_numbers; i++, n++) {
        u64 value = values[i];
        if (n->column < MAX_COLUMNS) add_arg(n->column, (i64)value);
        else if (n->column == OF_TIME) ts = time_of(sequences + r->sequence, r->clock, value);
        else if (n->column == OF_DURATION) dur = (i64)value;
        else if (n->column == OF_FLOW || (n->column == OF_EVENT && value))
            add_arg(correlation_column, (i64)(value & INT64_MAX));
    }
    const struct constant *c = repeated_constants(r);
    for (u32 i = r->num_constants; i--; c++) add_arg(c->column, c->value);
    if (r->ph == 'B') note_begin((i32)r->pid, ts);
    if (r->ph) add_row(r->ph, r->cat, r->name, r->pid, r->tid, ts, dur);
    else note_end((i32)r->pid, ts);
    return 1;
}

/* Read one packet. Returns 0 where its bytes are none; nothing of it is stored then. */
NOINLINE int take_packet(const u8 *p, const u8 *end) {
    struct wire w;
    u32 seen = 0;
    const u8 *const from = p, *const packet_end = end;
    draft_packet.from = p;
    draft_packet.num_numbers = 0;
    draft_packet.cacheable = 1;
    draft_packet.track = -1;
    EACH_FIELD_OF_MANY(p, end, w) {
        u32 field = w.number < sizeof packet_fields ? packet_fields[w.number] : UNUSED;
        if (field == TIME) {
            draft_packet.cacheable &= *p == 0x40 && !(seen >> TIME & 1);
            note_number(p + 1, next_w, SEVENS, OF_TIME);
        }
        latest[field].value = w.value; /* one by one: what is stored in parts is slow to load as a whole */
        latest[field].bytes = w.bytes;
        latest[field].number = w.number;
        seen |= 1u << field;
    }
    if (UNLIKELY(p < end)) return 0;
    struct sequence *s = sequence_of(latest_value(seen, SEQUENCE_ID) & 0xffffffff);
    if (UNLIKELY((latest_value(seen, SEQUENCE_FLAGS) & 1) || latest_value(seen, CLEARED))) {
        clear_repeats();
        s->state = ++num_states;
        s->default_clock = 0;
        s->default_track = 0;
        if (num_states >> 27) exhausted = 1;
    }
    if (UNLIKELY(latest_value(seen, LOST_BEFORE))) add_mark(&marks, 0, 0, LOST_PACKETS);
    p = latest_bytes(seen, DEFAULTS);
    if (UNLIKELY(p != 0)) take_defaults(p, p + latest[DEFAULTS].value, s);
    p = latest_bytes(seen, CLOCKS);
    if (UNLIKELY(p != 0)) {
        take_clocks(p, p + latest[CLOCKS].value, s);
        seen &= ~(1u << TIME);
    }
    p = latest_bytes(seen, INTERNED);
    if (UNLIKELY(p != 0)) take_interned(p, p + latest[INTERNED].value, s);
    u32 has_time = seen >> TIME & 1;
    i64 ts = LIKELY(has_time) ? time_of(s, (u32)latest_value(seen, TIME_CLOCK), latest[TIME].value) : NONE_NS;
    p = latest_bytes(seen, EVENT);
    if (!p) return 1;
    end = p + latest[EVENT].value;
    u32 kind = latest[EVENT].number;
    if (kind == 60) take_track(p, end);
    else if (kind == 50 || kind == 133) add_mark(&marks, 0, 0, COMPRESSED);
    else if (!has_time) counts.bad_time++;
    else {
        if (kind == EVENT_FIELD) take_track_event(p, end, s, ts);
        else take_gpu_event(p, end, s, ts);
        if (draft_packet.cacheable && !(seen & ~REPEATING) && !latest_value(seen, INTERNED))
            cache_packet(from, packet_end, s, (u32)latest_value(seen, TIME_CLOCK));
    }
    return 1;
}

static i32 column_of(const char *name, u32 length) { return find_key((const u8 *)name, length)->column; }

static int allocate_packets(void) {
    sequences = allocate(MAX_SEQUENCES * sizeof *sequences);
    lately = allocate(LATELY * sizeof *lately);
    if (!sequences || !grow_meanings() || !lately || !allocate_repeats()) return 0;
    track_number(0); /* is 0, which is none */
    if (!tracks.of) return 0;
    label_column = column_of("labels          ", 6);
    correlation_column = column_of("correlation     ", 11);
    device_column = column_of("device          ", 6);
    stream_column = column_of("stream          ", 6);
    grid_column = column_of("grid            ", 4);
    block_column = column_of("block           ", 5);
    return 1;
}

/* Return whether all bytes are fields, as those of a packet are. */
static int is_packet(const u8 *p, const u8 *end) {
    struct wire w;
    u32 fields = 0;
    EACH_FIELD(p, end, w) { fields++; waste += 8; }
    return fields && p == end;
}

/* Read packets from `*at` on; returns a status, with `*at` behind what was read. `*lost`: search for a packet first. */
static enum status read_packets(const u8 **at, int *lost) {
    const u8 *p = *at, *body;
    enum status status = NEED_MORE;
    for (;;) {
        u64 length;
        if (UNLIKELY(exhausted)) { status = EXHAUSTED; break; }
        if (UNLIKELY(rows == ROW_CAPACITY || marks.count > ROW_CAPACITY)) { status = ROWS_FULL; break; }
        if (UNLIKELY(p >= block_end)) {
            if (is_final) close_run(1);
            status = is_final ? ARRAY_END : NEED_MORE;
            p = block_end;
            break;
        }
        body = *p == 0x0a ? varint(p + 1, &length) : 0;
        int is_one = body && length <= (*lost ? MAX_LOST_PACKET : MAX_PACKET);
        if (UNLIKELY(is_one && (body > block_end || length > (u64)(block_end - body)))) {
            if (!is_final) break;
            is_one = 0;
            cut = 1;
        }
        if (UNLIKELY(*lost)) {
            const u8 *end = body + length;
            is_one = is_one && is_packet(body, end) && (end >= block_end || *end == 0x0a);
            if (waste > max_waste) { p = block_end; continue; }
            if (!is_one) { p++; continue; }
            *lost = 0;
            counts.malformed += (u32)cut; /* not the end of the file, then */
            cut = 0;
        }
        if (LIKELY(is_one && (take_repeated(body, (u32)length) || take_packet(body, body + length)))) {
            p = body + length;
            continue;
        }
        note_bad(p);
        counts.malformed += !cut;
        *lost = !is_one || (body + length < block_end && body[length] != 0x0a);
        p = *lost ? p + 1 : body + length;
    }
    *at = p;
    return status;
}
