/* A graph of waits: when each node ends if it starts as soon as everything it waits for has ended.
 *
 * Edges lie sorted by the node they lead to: those into node n are first[n] to first[n + 1]. The host fills the
 * arrays in place, asks once for an order in which every node comes after all it waits for, and then as often as it
 * likes for the ends. */
#pragma once
#include "memory.h"

static struct waits {
    u32 nodes, edges;
    u32 *first, *source, *order; /* nodes + 1, edges, nodes */
    double *lag;                 /* per edge: how long after the source's end */
    double *earliest, *duration, *end;
} waits;

/* Return where the arrays lie, or 0 when memory is out. */
EXPORT(waits_layout) const struct waits *waits_layout(u32 nodes, u32 edges) {
    waits = (struct waits){.nodes = nodes, .edges = edges};
    waits.first = allocate(((u64)nodes + 1) * 4);
    waits.source = allocate((u64)edges * 4);
    waits.order = allocate((u64)nodes * 4);
    waits.lag = allocate((u64)edges * 8);
    waits.earliest = allocate((u64)nodes * 8);
    waits.duration = allocate((u64)nodes * 8);
    waits.end = allocate((u64)nodes * 8);
    return waits.first && waits.source && waits.order && waits.lag && waits.earliest && waits.duration && waits.end
               ? &waits
               : 0;
}

/* Fill in the order (Kahn's algorithm); returns how many nodes have a place in it: fewer than all where some wait for
 * each other in a circle, and ~0 when memory is out. */
EXPORT(waits_order) u32 waits_order(void) {
    const u32 nodes = waits.nodes, edges = waits.edges, *first = waits.first, *source = waits.source;
    u32 *starts = allocate(((u64)nodes + 1) * 4), *follows = allocate((u64)edges * 4);
    u32 *waiting = allocate((u64)nodes * 4), *ready = allocate((u64)nodes * 4);
    if (!starts || !follows || !waiting || !ready) return ~0u;
    __builtin_memset(starts, 0, ((u64)nodes + 1) * 4);
    for (u32 e = 0; e < edges; e++) starts[source[e] + 1]++;
    for (u32 n = 0; n < nodes; n++) starts[n + 1] += starts[n];
    u32 *place = ready; /* until it is needed as the stack: where the next edge out of each node goes */
    for (u32 n = 0; n < nodes; n++) place[n] = starts[n];
    for (u32 n = 0; n < nodes; n++)
        for (u32 e = first[n]; e < first[n + 1]; e++) follows[place[source[e]]++] = n;
    u32 num_ready = 0, done = 0;
    for (u32 n = 0; n < nodes; n++) waiting[n] = first[n + 1] - first[n];
    for (u32 n = 0; n < nodes; n++)
        if (!waiting[n]) ready[num_ready++] = n;
    while (num_ready) {
        u32 node = ready[--num_ready];
        waits.order[done++] = node;
        for (u32 e = starts[node]; e < starts[node + 1]; e++)
            if (!--waiting[follows[e]]) ready[num_ready++] = follows[e];
    }
    return done;
}

/* Fill in the ends. */
EXPORT(waits_ends) void waits_ends(void) {
    const u32 *first = waits.first, *source = waits.source;
    double *end = waits.end;
    for (u32 i = 0; i < waits.nodes; i++) {
        u32 node = waits.order[i];
        double start = waits.earliest[node];
        for (u32 e = first[node]; e < first[node + 1]; e++) {
            double ready = end[source[e]] + waits.lag[e];
            if (ready > start) start = ready;
        }
        end[node] = start + waits.duration[node];
    }
}

/* Fill in, in place of the ends, by when each node must end for all to end at `end` as the host left it there. */
EXPORT(waits_latest) void waits_latest(void) {
    const u32 *first = waits.first, *source = waits.source;
    double *latest = waits.end;
    for (u32 i = waits.nodes; i--;) {
        u32 node = waits.order[i];
        double start = latest[node] - waits.duration[node];
        for (u32 e = first[node]; e < first[node + 1]; e++) {
            double allowed = start - waits.lag[e];
            if (allowed < latest[source[e]]) latest[source[e]] = allowed;
        }
    }
}
