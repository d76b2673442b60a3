/* One event: its fields into the columns' next row. */
#pragma once
#include "columns.h"

static struct counts {
    u32 malformed, bad_time, negative_duration, recovered, bad_args;
} counts;

static u32 holds_events; /* an object among the events has a list of events itself: another file's, put behind this one */

enum field { F_OTHER, F_PH, F_CAT, F_NAME, F_PID, F_TID, F_TS, F_DUR, F_ARGS };

struct event {
    i64 pid, tid, ts, dur;
    i32 cat, name;
    u32 has_ph, bad_ts, bad_dur, bad_args;
    u8 ph;
};

static const i64 NO_ID = INT64_MIN; /* no pid or tid: kept as the empty string's id */

enum { MAX_UNESCAPED = MAX_KEY_LENGTH + 1 };

/* Write a key with escapes (never seen, but allowed) as plain bytes; returns its length, one too many if too long. */
static u32 unescape_key(const u8 *p, const u8 *end, u8 *out) {
    u32 n = 0;
    for (; p < end && n < MAX_UNESCAPED; p++) {
        if (*p != '\\') { out[n++] = *p; continue; }
        if (*++p != 'u') { out[n++] = *p; continue; }
        u32 code = 0;
        for (int i = 0; i < 4; i++) {
            u8 c = *++p;
            code = code * 16 + (is_digit(c) ? c - '0' : ((c | 0x20) - 'a' + 10) & 15);
        }
        out[n++] = code < 128 ? (u8)code : 0xff; /* no configured key is beyond ASCII */
    }
    return n;
}

static const char TRACE_EVENTS[] = "traceEvents     "; /* readable as far as `same_bytes` looks */

INLINE enum field field_of(const u8 *p, u32 length) {
    u32 word = load32(p);
    switch (length) {
    case 2:
        if ((word & 0xffff) == WORD('p', 'h', 0, 0)) return F_PH;
        if ((word & 0xffff) == WORD('t', 's', 0, 0)) return F_TS;
        return F_OTHER;
    case 3:
        word &= 0xffffff;
        if (word == WORD('c', 'a', 't', 0)) return F_CAT;
        if (word == WORD('p', 'i', 'd', 0)) return F_PID;
        if (word == WORD('t', 'i', 'd', 0)) return F_TID;
        if (word == WORD('d', 'u', 'r', 0)) return F_DUR;
        return F_OTHER;
    case 4:
        if (word == WORD('n', 'a', 'm', 'e')) return F_NAME;
        if (word == WORD('a', 'r', 'g', 's')) return F_ARGS;
        return F_OTHER;
    case 11:
        if (same_bytes(p, (const u8 *)TRACE_EVENTS, 11)) holds_events = 1;
    }
    return F_OTHER;
}

/* Go behind the colon that follows a key's closing quote at `p`. */
NOINLINE const u8 *after_colon(const u8 *p, const u8 *end) {
    if (LIKELY((load32(p) & 0xffffff) == WORD('"', ':', ' ', 0))) {
        p += 3;
        return LIKELY(*p > ' ') ? p : skip_space(p);
    }
    p = skip_space(p + 1);
    if (UNLIKELY(*p != ':')) return fail(p, end);
    return skip_space(p + 1);
}

/* Go to the content of the next key, behind its quote, after a value that ends at `p`. Returns 0 at the end of the
 * object, with `p` behind its brace, or where no key follows, with `p` 0. */
NOINLINE const u8 *next_key(const u8 **p, const u8 *end) {
    const u8 *q = *p;
    if (LIKELY((load32(q) & 0xffffff) == WORD(',', ' ', '"', 0))) return q + 3;
    q = skip_space(q);
    if (*q == ',') {
        q = skip_space(q + 1);
        if (LIKELY(*q == '"')) return q + 1;
        *p = fail(q, end);
        return 0;
    }
    *p = LIKELY(*q == '}') && LIKELY(q < end) ? q + 1 : fail(q, end);
    return 0;
}

INLINE const u8 *first_key(const u8 **p, const u8 *end) {
    const u8 *q = skip_space(*p);
    if (LIKELY(*q == '"')) return q + 1;
    *p = *q == '}' ? q + 1 : fail(q, end);
    return 0;
}

/* Read the key whose content starts at `p`. Returns the byte where the value starts. */
NOINLINE const u8 *read_key(const u8 *p, const u8 *end, u8 *scratch, const u8 **text, u32 *length) {
    int escaped = 0;
    *text = p;
    p = string_end(p, end, KEY, &escaped);
    if (UNLIKELY(!p)) return 0;
    *length = (u32)(p - *text);
    if (UNLIKELY(escaped)) {
        *length = unescape_key(*text, p, scratch);
        *text = scratch;
    }
    return after_colon(p, end);
}

/* Read any value as a text: strings by content, null as no text, anything else by its JSON text. That of a number is
 * the content of a string with the same characters. */
NOINLINE const u8 *read_new_text(const u8 *p, const u8 *end, i32 *id) {
    u32 recovered = lenient ? TEXT_LENIENT : 0;
    if (LIKELY(*p == '"')) {
        int escaped = 0;
        const u8 *q = string_end(p + 1, end, MEMBER, &escaped);
        if (UNLIKELY(!q)) return 0;
        *id = intern(p + 1, (u32)(q - p - 1), recovered | (escaped ? TEXT_ESCAPED : 0));
        return q + 1;
    }
    const u8 *q = value_end(p, end);
    if (UNLIKELY(!q)) return 0;
    if (q >= end) return fail(q, end);
    if (q - p == 4 && load32(p) == WORD('n', 'u', 'l', 'l')) *id = NO_STRING;
    else *id = intern(p, (u32)(q - p), recovered | (*p == '[' || *p == '{' ? TEXT_JSON : 0));
    return q;
}

/* The same, with a look at what was read lately. */
NOINLINE const u8 *read_text(const u8 *p, const u8 *end, i32 *id) {
    u32 *set = recent_at(p);
    const u8 *q = LIKELY(!lenient) ? after_recent_text(set, p, end, id) : 0;
    if (LIKELY(q != 0)) return q;
    q = read_new_text(p, end, id);
    if (LIKELY(q != 0) && *id != NO_STRING) keep_recent(set, *id);
    return q;
}

/* Read a process or thread: a number, as text too (rocprof), or anything else as a text; null counts as absent. */
NOINLINE const u8 *read_id(const u8 *p, const u8 *end, i64 *value) {
    i32 id;
    *value = NO_ID;
    if (LIKELY(*p != '"')) {
        u64 digits;
        const u8 *q = short_digits(p, &digits);
        if (LIKELY(q > p && !is_word(*q))) {
            *value = (i64)digits;
            return q;
        }
        struct number n;
        q = any_decimal(p, 0, &n);
        if (n.kind == IN_RANGE && n.exact && n.value > STRING_ID_BASE / 2 && !is_word(*q)) {
            *value = n.value;
            return q;
        }
    } else if (is_digit(p[1]) && (p[1] != '0' || p[2] == '"')) {
        u64 digits;
        const u8 *q = short_digits(p + 1, &digits);
        if (*q == '"' && q < end) {
            *value = (i64)digits;
            return q + 1;
        }
    }
    p = read_text(p, end, &id);
    if (UNLIKELY(!p)) return 0;
    if (id == NO_STRING) return p;
    *value = STRING_ID_BASE + id;
    return p;
}

/* Read a time in microseconds as nanoseconds, a number or (rocprof) its text; null counts as absent. */
NOINLINE const u8 *read_time(const u8 *p, const u8 *end, i64 *value, u32 *bad) {
    *bad = 0;
    const u8 *q = short_time(p, value);
    if (LIKELY(q != 0)) return q;
    struct number n = {0};
    int is_text = *p == '"';
    q = any_decimal(p + is_text, 3, &n);
    *value = n.value;
    if (n.kind == IN_RANGE && (is_text ? *q == '"' && q < end : !is_word(*q))) return q + is_text;
    *bad = !(load32(p) == WORD('n', 'u', 'l', 'l') && !is_word(p[4]));
    *value = NONE_NS;
    return value_end(p, end);
}

/* Read an integer written in a string: decimal, or hexadecimal after 0x (stream handles). */
static int integer_in_text(const u8 *p, const u8 *end, i64 *value) {
    struct number n;
    if (end - p > 2 && p[0] == '0' && (p[1] | 0x20) == 'x') {
        u64 v = 0;
        for (p += 2; p < end; p++) {
            u32 digit = is_digit(*p) ? *p - '0' : (u8)((*p | 0x20) - 'a') < 6 ? (u32)((*p | 0x20) - 'a' + 10) : 16;
            if (digit == 16 || v >> 59) return 0;
            v = v << 4 | digit;
        }
        *value = (i64)v;
        return 1;
    }
    const u8 *q = any_decimal(p, 0, &n);
    *value = n.value;
    return q == end && n.kind == IN_RANGE && n.exact;
}

NOINLINE const u8 *read_odd_int(const u8 *p, const u8 *end, i32 column, u32 *bad) {
    const u8 *q = value_end(p, end);
    if (!q) return 0;
    i64 value;
    if (*p == '"' && integer_in_text(p + 1, q - 1, &value)) put_arg(column, value);
    else if (*p != '"' && integer_in_text(p, q, &value)) put_arg(column, value);
    else {
        forget_arg(column);
        *bad += !(q - p == 4 && load32(p) == WORD('n', 'u', 'l', 'l'));
    }
    return q;
}

INLINE const u8 *read_int_arg(const u8 *p, const u8 *end, i32 column, u32 *bad) {
    u64 value;
    const u8 *q = short_digits(p, &value);
    if (UNLIKELY(q == p || is_word(*q))) return read_odd_int(p, end, column, bad);
    put_arg(column, (i64)value);
    return q;
}

static u8 first_arg, after_unknown; /* as `next` of a key: arguments come in the same order again and again */

/* Read the object of arguments at `p`; anything but an object counts as none. */
NOINLINE const u8 *read_args(const u8 *p, const u8 *end, struct event *e) {
    u8 scratch[MAX_UNESCAPED + 16];
    const u8 *text;
    u32 length;
    e->bad_args = 0;
    if (UNLIKELY(*p != '{')) return value_end(p, end);
    p++;
    u8 *expected = &first_arg;
    for (const u8 *key = first_key(&p, end); key; key = next_key(&p, end)) {
        struct key *k = LIKELY(!lenient) ? expected_key(*expected, key, end) : 0;
        if (LIKELY(k != 0)) {
            p = after_colon(key + k->length, end);
        } else {
            p = read_key(key, end, scratch, &text, &length);
            if (LIKELY(p != 0)) k = find_key(text, length);
            *expected = k ? (u8)(k - keys + 1) : 0;
        }
        if (UNLIKELY(!p)) return 0;
        expected = k ? &k->next : &after_unknown;
        if (!k) {
            p = value_end(p, end);
        } else if (k->kind == ARG_INT) {
            p = read_int_arg(p, end, k->column, &e->bad_args);
        } else {
            i32 id;
            p = read_text(p, end, &id);
            if (id == NO_STRING) forget_arg(k->column);
            else put_arg(k->column, id);
        }
        if (UNLIKELY(!p)) return 0;
    }
    return p;
}

NOINLINE const u8 *read_ph(const u8 *p, const u8 *end, struct event *e) {
    e->has_ph = *p == '"';
    e->ph = 0;
    if (LIKELY(*p == '"' && p[2] == '"' && p[1] != '\\')) { e->ph = p[1]; return p + 3; }
    const u8 *q = value_end(p, end);
    u8 plain[MAX_UNESCAPED];
    if (q && *p == '"' && unescape_key(p + 1, q - 1, plain)) e->ph = plain[0];
    return q;
}

/* Return the field whose usual spelling, colon and one space included, stands at `key`, and go behind it. */
INLINE enum field quick_field(const u8 *key, const u8 **p) {
    enum field field;
    u32 length;
    switch (load32(key)) {
    case WORD('p', 'h', '"', ':'): field = F_PH; length = 2; break;
    case WORD('t', 's', '"', ':'): field = F_TS; length = 2; break;
    case WORD('c', 'a', 't', '"'): field = F_CAT; length = 3; break;
    case WORD('p', 'i', 'd', '"'): field = F_PID; length = 3; break;
    case WORD('t', 'i', 'd', '"'): field = F_TID; length = 3; break;
    case WORD('d', 'u', 'r', '"'): field = F_DUR; length = 3; break;
    case WORD('n', 'a', 'm', 'e'): field = F_NAME; length = 4; break;
    case WORD('a', 'r', 'g', 's'): field = F_ARGS; length = 4; break;
    default: return F_OTHER;
    }
    const u8 *q = key + length;
    if (UNLIKELY((load32(q) & 0xffffff) != WORD('"', ':', ' ', 0) || q[3] <= ' ')) return F_OTHER;
    *p = q + 3;
    return field;
}

/* Read the fields of the event whose brace is at `p`; returns the byte after its closing brace. */
INLINE const u8 *read_fields(const u8 *p, const u8 *end, struct event *e) {
    u8 scratch[MAX_UNESCAPED + 16];
    const u8 *text;
    u32 length;
    int has_args = 0;
    *e = (struct event){.pid = NO_ID, .tid = NO_ID, .ts = NONE_NS, .dur = NONE_NS, .cat = NO_STRING, .name = NO_STRING};
    p++;
    for (const u8 *key = first_key(&p, end); key; key = next_key(&p, end)) {
        enum field field = quick_field(key, &p);
        if (UNLIKELY(field == F_OTHER)) {
            p = read_key(key, end, scratch, &text, &length);
            if (UNLIKELY(!p)) return 0;
            field = field_of(text, length);
        }
        switch (field) {
        case F_PH: p = read_ph(p, end, e); break;
        case F_CAT: p = read_text(p, end, &e->cat); break;
        case F_NAME: p = read_text(p, end, &e->name); break;
        case F_PID: p = read_id(p, end, &e->pid); break;
        case F_TID: p = read_id(p, end, &e->tid); break;
        case F_TS: p = read_time(p, end, &e->ts, &e->bad_ts); break;
        case F_DUR: p = read_time(p, end, &e->dur, &e->bad_dur); break;
        case F_ARGS:
            if (UNLIKELY(has_args)) forget_args();
            has_args = 1;
            p = read_args(p, end, e);
            break;
        case F_OTHER: p = value_end(p, end);
        }
        if (UNLIKELY(!p)) return 0;
    }
    return p;
}

static const u8 no_text;

/* Forget what was stored of an event that is not kept; it began with `first_text` texts in the table. */
static void forget_event(u32 first_text) {
    forget_args();
    forget_texts(first_text);
}

/* Put a complete event into its row, or count why it is dropped. */
INLINE void keep_event(const struct event *e, u32 offset, u32 first_text) {
    int timed = e->ph == 'X';
    int bad_time = e->bad_ts || e->bad_dur || (timed && (e->ts == NONE_NS || e->dur == NONE_NS));
    int negative = e->dur < 0 && e->dur != NONE_NS;
    if (UNLIKELY(bad_time || negative)) {
        if (bad_time) counts.bad_time++;
        else counts.negative_duration++;
        forget_event(first_text);
        return;
    }
    counts.bad_args += e->bad_args;
    col_ph[rows] = e->ph;
    col_cat[rows] = e->cat;
    col_name[rows] = e->name;
    col_pid[rows] = LIKELY(e->pid != NO_ID) ? e->pid : STRING_ID_BASE + intern(&no_text, 0, 0);
    col_tid[rows] = LIKELY(e->tid != NO_ID) ? e->tid : STRING_ID_BASE + intern(&no_text, 0, 0);
    col_ts[rows] = e->ts;
    col_dur[rows] = e->dur;
    col_offset[rows] = offset;
    rows++;
}
