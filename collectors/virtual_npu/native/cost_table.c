/* The table of the cost model: lines of the config file, operators by name, counts of those that no line names.
 *
 * No memory is allocated: the tables have fixed sizes, and a name is looked up in a hash.
 */
#define _GNU_SOURCE
#include "cost_table.h"

#include <fnmatch.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_CLASSES = 64,
    MAX_OPERATORS = 1024,
    SLOTS = 4096        /* of the hash, a power of two; names seen are kept below three quarters of it */
};

vn_cost_device vn_device;

#define KEY(name) {#name, offsetof(vn_cost_device, name)}
static const struct { const char *name; size_t at; } DEVICE_KEYS[] = {
    KEY(cube_cores), KEY(frequency_hz), KEY(cube_fp16), KEY(cube_bf16), KEY(cube_fp32), KEY(cube_int8),
    KEY(lanes_per_s), KEY(hbm_bytes_per_s), KEY(l2_bytes), KEY(l2_core_bytes_per_cycle),
    KEY(tile_m), KEY(tile_n), KEY(split_k), KEY(host_launch_ns), KEY(launch_latency_ns),
    KEY(h2d_fixed_ns), KEY(h2d_bytes_per_s), KEY(d2h_fixed_ns), KEY(d2h_bytes_per_s), KEY(h2h_fixed_ns),
    KEY(h2h_bytes_per_s), KEY(d2d_fixed_ns), KEY(d2d_bytes_per_s), KEY(memset_fixed_ns), KEY(memset_bytes_per_s),
    KEY(peer_bytes_per_s), KEY(is_switched), KEY(node_bytes_per_s), KEY(single_rank_ns), KEY(collective_fixed_ns),
    KEY(gather_fixed_ns), KEY(send_fixed_ns), KEY(peer_step_ns), KEY(node_step_ns), KEY(all_reduce_efficiency),
    KEY(all_gather_efficiency), KEY(reduce_scatter_efficiency), KEY(send_efficiency), KEY(node_efficiency),
};

#define CLASS_KEY(name) {#name, offsetof(vn_cost_class, name)}
static const struct { const char *name; size_t at; } CLASS_KEYS[] = {
    CLASS_KEY(fixed_ns), CLASS_KEY(growth_ns), CLASS_KEY(cube_efficiency), CLASS_KEY(outer_efficiency),
    CLASS_KEY(fp32_efficiency), CLASS_KEY(cycles_per_pair), CLASS_KEY(cycles_per_extra), CLASS_KEY(bytes_per_pair),
    CLASS_KEY(cycles_per_element), CLASS_KEY(hbm_efficiency), CLASS_KEY(l2_efficiency), CLASS_KEY(write_efficiency),
    CLASS_KEY(bytes_per_s), CLASS_KEY(flops_per_element),
};

static const char *const RULE_NAMES[RULES] = {
    "tensors", "matmul", "grouped", "conv", "conv_backward", "attention", "attention_backward", "attention_inference",
    "gather", "scatter", "scatter_out", "scatter_grad", "copy",
};

static vn_cost_class classes[MAX_CLASSES];
static vn_cost_operator operators[MAX_OPERATORS];
static int class_count, operator_count;
static char problem[160];

typedef struct {
    char name[VN_COST_MAX_NAME];
    const vn_cost_operator *found;      /* NULL: not known */
    int64_t calls;                      /* of an operator that is not known */
} seen_t;
static seen_t seen[SLOTS];
static int seen_count;
static int unknown[SLOTS], unknown_count;

void vn_cost_reset(void) {
    memset(&vn_device, 0, sizeof vn_device);
    memset(classes, 0, sizeof classes);
    memset(operators, 0, sizeof operators);
    memset(seen, 0, sizeof seen);
    class_count = operator_count = seen_count = unknown_count = 0;
    problem[0] = 0;
}

const char *vn_cost_problem(void) { return problem[0] ? problem : NULL; }

static void not_understood(const char *what, const char *text) {
    if (!problem[0]) snprintf(problem, sizeof problem, "%s: %.100s", what, text ? text : "");
}

static vn_cost_class *loaded_class(const char *name) {
    for (int i = 0; i < class_count; i++)
        if (!strcmp(classes[i].name, name)) return &classes[i];
    return NULL;
}

const vn_cost_class *vn_cost_class_named(const char *name) { return loaded_class(name); }

static int number_of(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end && isfinite(*value);
}

static char *next_field(char **rest) {
    char *field = strsep(rest, "\t");
    return field ? field : "";
}

static void load_value(char *rest) {
    char *key = next_field(&rest), *text = next_field(&rest);
    double value;
    if (!number_of(text, &value)) { not_understood("not a number", text); return; }
    for (size_t i = 0; i < sizeof DEVICE_KEYS / sizeof *DEVICE_KEYS; i++)
        if (!strcmp(DEVICE_KEYS[i].name, key)) {
            *(double *)((char *)&vn_device + DEVICE_KEYS[i].at) = value;
            return;
        }
    not_understood("no such value", key);
}

static void load_class(char *rest) {
    char *name = next_field(&rest);
    vn_cost_class *klass = loaded_class(name);
    if (!klass) {
        if (class_count == MAX_CLASSES || !*name || strlen(name) >= sizeof klass->name) {
            not_understood("no room for the class", name);
            return;
        }
        klass = &classes[class_count++];
        strcpy(klass->name, name);
    }
    while (rest) {
        char *text = next_field(&rest), *key = strsep(&text, "=");
        double value;
        size_t i = 0, count = sizeof CLASS_KEYS / sizeof *CLASS_KEYS;
        while (i < count && strcmp(CLASS_KEYS[i].name, key)) i++;
        if (i == count || !text || !number_of(text, &value)) { not_understood("class value", key); continue; }
        *(double *)((char *)klass + CLASS_KEYS[i].at) = value;
    }
}

static void load_operator(char *rest) {
    char *pattern = next_field(&rest), *name = next_field(&rest), *rule = next_field(&rest);
    char *written = next_field(&rest), *skipped = next_field(&rest);
    const vn_cost_class *klass = vn_cost_class_named(name);
    int which = 0;
    while (which < RULES && strcmp(RULE_NAMES[which], rule)) which++;
    if (!klass || which == RULES || operator_count == MAX_OPERATORS || strlen(pattern) >= VN_COST_MAX_NAME) {
        not_understood("operator", pattern);
        return;
    }
    vn_cost_operator *entry = &operators[operator_count++];
    strcpy(entry->pattern, pattern);
    entry->klass = klass;
    entry->rule = (vn_cost_rule)which;
    for (; *written; written++)
        if (*written >= '0' && *written <= '9') entry->written |= 1u << (*written - '0');
    entry->skipped = atoi(skipped);
}

void vn_cost_load_line(char *line) {
    char *kind = next_field(&line);
    if (!line) not_understood("line", kind);
    else if (!strcmp(kind, "value")) load_value(line);
    else if (!strcmp(kind, "class")) load_class(line);
    else if (!strcmp(kind, "op")) load_operator(line);
    else not_understood("kind of line", kind);
}

double vn_cost_value(const char *key) {
    for (size_t i = 0; i < sizeof DEVICE_KEYS / sizeof *DEVICE_KEYS; i++)
        if (!strcmp(DEVICE_KEYS[i].name, key)) return *(double *)((char *)&vn_device + DEVICE_KEYS[i].at);
    return NAN;
}

/* ---- from name to operator --------------------------------------------------------------------------------------- */

/* aclnnInplaceAdd -> Add, aclopAdd -> Add. */
static const char *plain_name(const char *op, int *is_in_place) {
    if (!strncmp(op, "aclnn", 5) || !strncmp(op, "aclop", 5)) op += 5;
    *is_in_place = !strncmp(op, "Inplace", 7);
    return *is_in_place ? op + 7 : op;
}

static const vn_cost_operator *search(const char *op) {
    int is_in_place;
    const char *name = plain_name(op, &is_in_place);
    for (int i = 0; i < operator_count; i++)
        if (!fnmatch(operators[i].pattern, name, 0)) return &operators[i];
    return NULL;
}

const vn_cost_operator *vn_cost_find(const char *op, int *is_in_place) {
    plain_name(op, is_in_place);
    uint64_t hash = 1469598103934665603ull;
    for (const char *c = op; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
    unsigned at = (unsigned)hash % SLOTS;
    while (seen[at].name[0] && strcmp(seen[at].name, op)) at = (at + 1) % SLOTS;
    if (!seen[at].name[0]) {
        /* A name that cannot be kept is searched each time, and an unknown one is then not counted by name. */
        if (strlen(op) >= VN_COST_MAX_NAME || !*op || seen_count >= SLOTS / 4 * 3) return search(op);
        strcpy(seen[at].name, op);
        seen[at].found = search(op);
        seen_count++;
        if (!seen[at].found) unknown[unknown_count++] = (int)at;
    }
    if (!seen[at].found) seen[at].calls++;
    return seen[at].found;
}

int vn_cost_unknown_count(void) { return unknown_count; }

const char *vn_cost_unknown(int index, int64_t *calls) {
    if (index < 0 || index >= unknown_count) return NULL;
    if (calls) *calls = seen[unknown[index]].calls;
    return seen[unknown[index]].name;
}

