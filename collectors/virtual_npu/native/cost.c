/* What an operator call, a copy or a collective costs on the loaded device: see cost.h, and docs/virtual-npu-cost.md
 * for the formulas. Callers hold a lock.
 */
#include "cost_table.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 16 };            /* the cube multiplies blocks of 16 x 16 */

/* ---- from work to time ------------------------------------------------------------------------------------------- */

static double cube_peak(int32_t dtype) {
    double peak = dtype == 0 ? vn_device.cube_fp32 : dtype == 27 ? vn_device.cube_bf16
                : dtype == 2 || dtype == 4 || dtype == 29 ? vn_device.cube_int8 : vn_device.cube_fp16;
    return peak > 0 ? peak : vn_device.cube_fp16;
}

/* Seconds of the busiest core at full rate. Output tiles are dealt to the cores, so the last round may be partly idle;
 * a core needs at least the time to read both edges of its tile from L2; with fewer tiles than cores the summed
 * dimension is split, down to pieces of split_k. */
static double busiest_core_s(const vn_work *w) {
    double cores = fmax(vn_device.cube_cores, 1), rate = cube_peak(w->dtype) / cores, size = vn_cost_bytes_of(w->dtype);
    double k = vn_cost_blocks(w->k, size < 2 ? 32 / size : size > 2 ? 8 : BLOCK), best = INFINITY;
    const double shapes[4][2] = {
        {vn_device.tile_m, vn_device.tile_n}, {vn_device.tile_n, vn_device.tile_m},
        {vn_device.tile_m, vn_device.tile_m}, {vn_device.tile_m / 2, vn_device.tile_n},
    };
    double l2 = vn_device.l2_core_bytes_per_cycle * vn_device.frequency_hz;
    for (int i = 0; i < 4; i++) {
        double m = fmin(shapes[i][0], vn_cost_blocks(w->m, BLOCK)), n = fmin(shapes[i][1], vn_cost_blocks(w->n, BLOCK));
        if (m < 1 || n < 1) continue;
        double tiles = w->batch * ceil(w->m / shapes[i][0]) * ceil(w->n / shapes[i][1]);
        double pieces = fmin(floor(cores / tiles), k / fmax(vn_device.split_k, BLOCK));
        double depth = k / fmax(pieces, 1), one = 2 * m * n * depth / rate;
        if (l2 > 0) one = fmax(one, (m + n) * depth * size / l2);
        best = fmin(best, ceil(tiles / cores) * one);
    }
    return isfinite(best) ? best : 0;
}

static double memory_ns(const vn_cost_class *klass, double bytes, double written) {
    if (klass->bytes_per_s > 0) return bytes / klass->bytes_per_s * 1e9;
    if (!(vn_device.hbm_bytes_per_s > 0) || !(klass->hbm_efficiency > 0)) return 0;
    double seconds = 0;
    if (klass->write_efficiency > 0) {
        seconds = written / klass->write_efficiency;
        bytes -= written;
    }
    /* What fits in L2 may be there already, or be written back later. */
    double cached = klass->l2_efficiency > 0 ? fmin(bytes, vn_device.l2_bytes) : 0;
    seconds += (bytes - cached) / klass->hbm_efficiency;
    if (cached > 0) seconds += cached / klass->l2_efficiency;
    return seconds / vn_device.hbm_bytes_per_s * 1e9;
}

static double time_of(const vn_cost_class *klass, const vn_work *w, vn_cost *out) {
    double efficiency = w->both_outer && klass->outer_efficiency > 0 ? klass->outer_efficiency : klass->cube_efficiency;
    if (w->dtype == 0 && klass->fp32_efficiency > 0) efficiency = klass->fp32_efficiency;
    if (efficiency > 0 && w->m > 0 && w->n > 0 && w->k > 0) out->cube_ns = busiest_core_s(w) / efficiency * 1e9;
    else if (efficiency > 0 && w->flops > 0 && cube_peak(w->dtype) > 0)
        out->cube_ns = w->flops / cube_peak(w->dtype) / efficiency * 1e9;
    if (vn_device.lanes_per_s > 0)
        out->vector_ns = (w->pairs * (klass->cycles_per_pair + w->extras * klass->cycles_per_extra)
                          + w->elements * klass->cycles_per_element) / vn_device.lanes_per_s * 1e9;
    /* Vector cores of attention wait for blocks that they exchange with the cube cores: on top of their work. */
    double waiting = vn_device.hbm_bytes_per_s > 0 ? w->pairs * klass->bytes_per_pair / vn_device.hbm_bytes_per_s : 0;
    waiting *= 1e9;
    out->memory_ns = memory_ns(klass, w->bytes, w->written);
    out->fixed_ns = klass->fixed_ns + klass->growth_ns * log2(fmax(w->elements, 1));
    if (w->kernels > 1) out->fixed_ns *= w->kernels;
    double work = fmax(out->cube_ns, fmax(out->vector_ns + waiting, out->memory_ns)), copies = 0;
    /* Operands are laid out anew by a kernel of its own, before. */
    const vn_cost_class *moved = w->copied > 0 ? vn_cost_class_named("transpose") : NULL;
    if (moved) {
        copies = memory_ns(moved, w->copied, 0);
        out->fixed_ns += moved->fixed_ns;
    }
    out->memory_ns = fmax(out->memory_ns, waiting) + copies;
    out->flops = w->flops;
    out->bytes = w->bytes;
    out->klass = klass->name;
    out->ns = out->fixed_ns + work + copies;
    return out->ns;
}

double vn_cost_time(const char *name, const vn_work *work, vn_cost *out) {
    const vn_cost_class *klass = vn_cost_class_named(name);
    memset(out, 0, sizeof *out);
    return klass ? time_of(klass, work, out) : 0;
}

double vn_cost_kernel(const char *op, const vn_arg *args, int n, vn_cost *out) {
    vn_work work;
    const char *name = vn_cost_work(op, args, n, &work);
    return name ? vn_cost_time(name, &work, out) : 0;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static double at_rate(double fixed_ns, double bytes, double bytes_per_s) {
    return fixed_ns + (bytes_per_s > 0 ? bytes / bytes_per_s * 1e9 : 0);
}

double vn_cost_copy(int kind, double bytes) {
    switch (kind) {
    case 0: return at_rate(vn_device.h2h_fixed_ns, bytes, vn_device.h2h_bytes_per_s);
    case 1: return at_rate(vn_device.h2d_fixed_ns, bytes, vn_device.h2d_bytes_per_s);
    case 2: return at_rate(vn_device.d2h_fixed_ns, bytes, vn_device.d2h_bytes_per_s);
    case 3: return at_rate(vn_device.d2d_fixed_ns, bytes, vn_device.d2d_bytes_per_s);
    default: return at_rate(vn_device.memset_fixed_ns, bytes, vn_device.memset_bytes_per_s);
    }
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* Ranks in a node and nodes of a group. */
static void places_of(int ranks, int ranks_per_node, double *inside, double *nodes) {
    *inside = ranks_per_node < 1 ? 1 : ranks_per_node < ranks ? ranks_per_node : ranks;
    *nodes = ceil(ranks / *inside);
}

/* One phase of a full mesh: each rank exchanges `bytes` with each of `peers` at once. Behind a switch they share. */
static double mesh_ns(double bytes, double peers, double efficiency) {
    if (peers < 1) return 0;
    double rate = vn_device.peer_bytes_per_s * efficiency, load = vn_device.is_switched > 0 ? bytes * peers : bytes;
    return vn_device.peer_step_ns + (rate > 0 ? load / rate * 1e9 : 0);
}

/* `steps` rounds between nodes in which a card sends `bytes` in all. */
static double node_ns(double bytes, double steps) {
    double rate = vn_device.node_bytes_per_s * vn_device.node_efficiency;
    return steps * vn_device.node_step_ns + (rate > 0 ? bytes / rate * 1e9 : 0);
}

static int is_sent(const char *op) {
    return !strcmp(op, "Send") || !strcmp(op, "Recv") || !strcmp(op, "BatchSendRecv");
}

double vn_cost_collective(const char *op, double bytes, int ranks, int ranks_per_node, vn_cost *out) {
    double inside, nodes, phases = 0, fixed = vn_device.collective_fixed_ns;
    places_of(ranks < 1 ? 1 : ranks, ranks_per_node, &inside, &nodes);
    /* Non-uniform hierarchical ring: log2 rounds; for powers of two the same as halving and doubling. */
    double rounds = nodes > 1 ? ceil(log2(nodes)) : 0, peers = inside - 1, share = (nodes - 1) / nodes;
    out->klass = "communication";
    out->bytes = bytes;
    if (ranks < 2 && !is_sent(op)) {
        out->ns = out->fixed_ns = vn_device.single_rank_ns;
        return out->ns;
    }
    if (!strcmp(op, "AllReduce") || !strcmp(op, "Barrier")) {
        double part = bytes / inside;
        phases = 2 * mesh_ns(part, peers, vn_device.all_reduce_efficiency);
        if (nodes > 1) phases += node_ns(2 * share * part, 2 * rounds);
    } else if (!strcmp(op, "AllGather")) {
        fixed = vn_device.gather_fixed_ns;
        phases = mesh_ns(bytes * nodes, peers, vn_device.all_gather_efficiency);
        if (nodes > 1) phases += node_ns((nodes - 1) * bytes, rounds);
    } else if (!strcmp(op, "ReduceScatter")) {
        fixed = vn_device.gather_fixed_ns;
        phases = mesh_ns(bytes * nodes, peers, vn_device.reduce_scatter_efficiency);
        if (nodes > 1) phases += node_ns((nodes - 1) * bytes, rounds);
    } else if (!strcmp(op, "Broadcast") || !strcmp(op, "Reduce")) {
        /* All of it over each link, or parts of it that the receivers then exchange: whichever is shorter. */
        double whole = mesh_ns(bytes, peers, vn_device.send_efficiency);
        double parts = 2 * mesh_ns(bytes / inside, peers, vn_device.all_gather_efficiency);
        phases = fmin(whole, parts);
        if (nodes > 1) phases += fmin(node_ns(rounds * bytes, rounds), node_ns(2 * share * bytes / inside, 2 * rounds));
    } else if (!strcmp(op, "Scatter")) {
        phases = mesh_ns(bytes, peers, vn_device.send_efficiency);
        if (nodes > 1) phases += node_ns((ranks - inside) * bytes, nodes - 1);
    } else if (!strncmp(op, "AlltoAll", 8)) {
        double each = bytes / ranks;
        phases = mesh_ns(each, peers, vn_device.send_efficiency);
        /* Links inside and between nodes work at the same time. */
        if (nodes > 1) phases = fmax(phases, node_ns((ranks - inside) * each, nodes - 1));
    } else {
        fixed = vn_device.send_fixed_ns;
        phases = ranks_per_node >= 2 || ranks < 2 ? mesh_ns(bytes, 1, vn_device.send_efficiency) : node_ns(bytes, 1);
    }
    out->fixed_ns = fixed;
    out->memory_ns = phases;
    out->ns = fixed + phases;
    return out->ns;
}

const char *vn_cost_algorithm(const char *op, int ranks, int ranks_per_node) {
    double inside, nodes;
    if (ranks < 2) return "NULL";
    places_of(ranks, ranks_per_node, &inside, &nodes);
    if (is_sent(op)) return "NULL";
    if (nodes < 2) return "MESH";
    if (!strncmp(op, "AlltoAll", 8)) return inside > 1 ? "MESH-PAIRWISE" : "PAIRWISE";
    return inside > 1 ? "MESH-NHR" : "NHR";
}
