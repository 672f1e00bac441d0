/* Settings of the virtual device: the file named by ASCEND_PERF_VIRTUAL_NPU, then the variables of the job.
 *
 * The file is text, one setting a line, fields separated by tabs (environment.py writes it). Without the variable the
 * device has the defaults below and records nothing, which is enough to import torch_npu and to check calls.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "cost.h"

typedef struct factor {
    struct factor *next;
    double value;
    char name[];
} factor;

static vn_config settings = {
    .soc = "Ascend910B2", .device_count = 8, .world_size = 1, .ranks_per_node = 8, .processes = 1,
    .hbm_bytes = 64ll << 30, .cube_cores = 24, .vector_cores = 48, .host_launch_ns = -1, .launch_latency_ns = -1,
    .cann_version = "9.1.0", .l2_bytes = 192ll << 20, .rank_factor = 1, .link_factor = 1,
};
static factor *factors;
static pthread_once_t is_read = PTHREAD_ONCE_INIT;

/* Default cost hooks, for a build without cost.c. */
__attribute__((weak)) void vn_cost_load_line(char *line) { (void)line; }
__attribute__((weak)) double vn_cost_value(const char *key) { (void)key; return 0; }
__attribute__((weak)) const char *vn_cost_problem(void) { return NULL; }

/* What the cost model says, unless the settings or a fault did. Without a model (the library is only imported) the
 * least with which modelled time goes on where a program polls. */
static void take_from_cost_model(int64_t *ns, const char *key)
{
    double value = vn_cost_value(key);
    if (*ns < 0)
        *ns = value > 0 ? (int64_t)(value + 0.5) : 1;
}

__attribute__((noreturn)) static void stop(const char *path, const char *line, const char *what)
{
    fprintf(stderr, "virtual NPU: %s: %s: %s\n", path, what, line);
    _exit(78);      /* EX_CONFIG; no exception can cross the C interface, and a wrong device gives wrong figures */
}

static int from_environment(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

static char *field(char **rest)
{
    return *rest ? strsep(rest, "\t") : NULL;
}

static void copy_text(char *into, size_t size, const char *text)
{
    snprintf(into, size, "%s", text);
}

static void read_fault(const char *path, const char *line, char *rest)
{
    char *kind = field(&rest), *first = field(&rest), *second = field(&rest);
    if (!kind || !first)
        stop(path, line, "fault without value");
    if (!strcmp(kind, "slow_rank")) {
        if (!second)
            stop(path, line, "fault slow_rank wants a rank and a factor");
        if (atoi(first) == settings.rank)
            settings.rank_factor *= atof(second);
    } else if (!strcmp(kind, "slow_link")) {
        settings.link_factor *= atof(first);
    } else if (!strcmp(kind, "launch_latency")) {
        settings.launch_latency_ns = atoll(first);
    } else if (!strcmp(kind, "op_factor")) {
        if (!second)
            stop(path, line, "fault op_factor wants an operator and a factor");
        factor *one = malloc(sizeof *one + strlen(first) + 1);
        one->value = atof(second);
        strcpy(one->name, first);
        one->next = factors;
        factors = one;
    } else {
        stop(path, line, "fault that is not known");
    }
}

static void read_line(const char *path, char *line)
{
    char whole[512];
    copy_text(whole, sizeof whole, line);
    if (!strncmp(line, "cost\t", 5)) {
        vn_cost_load_line(line + 5);
        return;
    }
    char *rest = line, *key = field(&rest);
    if (!*key || *key == '#')
        return;
    if (!strcmp(key, "fault")) {
        read_fault(path, whole, rest);
        return;
    }
    const char *value = field(&rest);
    if (!value)
        stop(path, whole, "setting without value");
    if (!strcmp(key, "version")) {
        if (strcmp(value, "1"))
            stop(path, whole, "version of the settings is not 1");
    } else if (!strcmp(key, "soc"))
        copy_text(settings.soc, sizeof settings.soc, value);
    else if (!strcmp(key, "device_count"))
        settings.device_count = atoi(value);
    else if (!strcmp(key, "world_size"))
        settings.world_size = atoi(value);
    else if (!strcmp(key, "ranks_per_node"))
        settings.ranks_per_node = atoi(value) > 0 ? atoi(value) : 1;
    else if (!strcmp(key, "hbm_bytes"))
        settings.hbm_bytes = atoll(value);
    else if (!strcmp(key, "clock"))
        settings.is_modelled = !strcmp(value, "modelled");
    else if (!strcmp(key, "record"))
        copy_text(settings.record_folder, sizeof settings.record_folder, value);
    else if (!strcmp(key, "processes"))         /* "env": as many as WORLD_SIZE says (torchrun) */
        settings.processes = !strcmp(value, "self") ? 1
                             : !strcmp(value, "env") ? from_environment("WORLD_SIZE", 1) : atoi(value);
    else if (!strcmp(key, "meet"))
        copy_text(settings.meet_path, sizeof settings.meet_path, value);
    else if (!strcmp(key, "link_bytes_per_s"))
        copy_text(settings.link_bytes_per_s, sizeof settings.link_bytes_per_s, value);
    else if (!strcmp(key, "node_link_bytes_per_s"))
        copy_text(settings.node_link_bytes_per_s, sizeof settings.node_link_bytes_per_s, value);
    else if (!strcmp(key, "host_launch_ns"))
        settings.host_launch_ns = atoll(value);
    else if (!strcmp(key, "launch_latency_ns"))
        settings.launch_latency_ns = atoll(value);
    else if (!strcmp(key, "cube_cores"))
        settings.cube_cores = atoi(value);
    else if (!strcmp(key, "l2_bytes"))
        settings.l2_bytes = atoll(value);
    else if (!strcmp(key, "vector_cores"))
        settings.vector_cores = atoi(value);
    else if (!strcmp(key, "cann_version"))
        copy_text(settings.cann_version, sizeof settings.cann_version, value);
    /* Other settings belong to other parts (names for the export). */
}

/* As the driver does it: the list ends at the first entry that is no device. */
static int visible_devices(int installed)
{
    const char *list = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (!list)
        return installed;
    int count = 0;
    for (const char *at = list; *at;) {
        char *end;
        long device = strtol(at, &end, 10);
        if (end == at || device < 0 || device >= installed)
            break;
        count++;
        at = *end == ',' ? end + 1 : end;
        if (*end && *end != ',')
            break;
    }
    return count;
}

static void read_settings(void)
{
    settings.rank = from_environment("RANK", 0);
    settings.local_rank = from_environment("LOCAL_RANK", settings.rank);
    const char *path = getenv("ASCEND_PERF_VIRTUAL_NPU");
    if (path && *path) {
        FILE *file = fopen(path, "r");
        if (!file)
            stop(path, "", "settings cannot be read");
        char *line = NULL;
        size_t size = 0;
        for (ssize_t length; (length = getline(&line, &size, file)) >= 0;) {
            if (length && line[length - 1] == '\n')
                line[length - 1] = 0;
            read_line(path, line);
        }
        free(line);
        fclose(file);
    }
    take_from_cost_model(&settings.host_launch_ns, "host_launch_ns");
    take_from_cost_model(&settings.launch_latency_ns, "launch_latency_ns");
    if (vn_cost_problem())
        stop(path, vn_cost_problem(), "line of the cost model that is not understood");
    settings.world_size = from_environment("WORLD_SIZE", settings.world_size);
    if (settings.processes > 1 && settings.processes != settings.world_size) {
        char text[96];
        snprintf(text, sizeof text, "processes %d, world size %d", settings.processes, settings.world_size);
        stop(path, text, "either all ranks of the job run or one stands for all");
    }
    if (settings.processes > 1 && !settings.meet_path[0])
        stop(path, "meet", "several processes need a file to meet");
    if (settings.device_count > VN_MAX_DEVICES)
        settings.device_count = VN_MAX_DEVICES;
    settings.device_count = visible_devices(settings.device_count);
}

const vn_config *vn_settings(void)
{
    pthread_once(&is_read, read_settings);
    return &settings;
}

double vn_operator_factor(const char *name)
{
    double product = 1;
    for (const factor *one = factors; one; one = one->next)
        if (!strcmp(one->name, name))
            product *= one->value;
    return product;
}
