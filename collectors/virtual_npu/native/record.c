/* The record: what happened on the virtual device, as lines of text (format: record.py).
 *
 * The file is written through a shared memory mapping, so every line is in the page cache the moment it is formatted:
 * the record is whole up to the last line after os._exit, a signal or a crash, and no line costs a system call. What a
 * process that ended that way leaves behind the last line is zeros, which the reader cuts off; the last line "Z" then
 * is missing and says so.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

enum { WINDOW_BYTES = 1 << 20, FIRST_BUCKETS = 4096 };

typedef enum { NOT_OPENED, OPEN, CLOSED } record_state;

static record_state state;
static int file = -1;
static char *window;                    /* mapped part of the file */
static size_t window_size, window_used;
static off_t window_start;              /* offset of it in the file */
static uint64_t lines, seq;

__attribute__((weak)) const char vn_build_id[] = "unknown";

static void give_up(const char *what)
{
    fprintf(stderr, "virtual NPU: %s: %s; the record ends here\n", what, strerror(errno));
    state = CLOSED;
}

/* Maps the next part of the file so that `length` more bytes fit. */
static bool make_room(size_t length)
{
    if (window && window_used + length <= window_size)
        return true;
    off_t at = window_start + (off_t)window_used, page = sysconf(_SC_PAGESIZE), start = at / page * page;
    size_t size = (size_t)(at - start) + length;
    size = (size + WINDOW_BYTES - 1) / WINDOW_BYTES * WINDOW_BYTES;
    /* posix_fallocate and not ftruncate: a full disk is an error here and not a SIGBUS while writing. */
    int code = posix_fallocate(file, start, (off_t)size);
    if (code) {
        errno = code;
        give_up("cannot enlarge the record");
        return false;
    }
    char *next = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, start);
    if (next == MAP_FAILED) {
        give_up("cannot map the record");
        return false;
    }
    if (window)
        munmap(window, window_size);
    window = next;
    window_size = size;
    window_start = start;
    window_used = (size_t)(at - start);
    return true;
}

static void put(const char *text, size_t length)
{
    if (!make_room(length + 1))
        return;
    memcpy(window + window_used, text, length);
    window[window_used + length] = '\n';
    window_used += length + 1;
    lines++;
}

static void open_record(void)
{
    const vn_config *settings = vn_settings();
    state = CLOSED;
    if (!settings->record_folder[0])
        return;
    char path[4200];
    snprintf(path, sizeof path, "%s/rank%d.%d.vnpu", settings->record_folder, settings->rank, (int)getpid());
    file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) {
        give_up("cannot create the record");
        return;
    }
    state = OPEN;
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    vn_record_locked("H\tversion\t1");
    vn_record_locked("H\tdata_origin\tsimulated");
    vn_record_locked("H\tsoc\t%s", settings->soc);
    vn_record_locked("H\tdevice\t%d", settings->local_rank);
    vn_record_locked("H\tworld_size\t%d", settings->world_size);
    vn_record_locked("H\trank\t%d", settings->rank);
    vn_record_locked("H\tranks_per_node\t%d", settings->ranks_per_node);
    vn_record_locked("H\tprocesses\t%d", settings->processes);
    vn_record_locked("H\tpid\t%d", (int)getpid());
    vn_record_locked("H\tclock\t%s", settings->is_modelled ? "modelled" : "wall");
    vn_record_locked("H\tstart_raw_ns\t%lld", (long long)vn_raw_ns());
    vn_record_locked("H\tstart_realtime_ns\t%lld", (long long)real.tv_sec * 1000000000ll + real.tv_nsec);
    vn_record_locked("H\thbm_bytes\t%lld", (long long)settings->hbm_bytes);
    vn_record_locked("H\thost_launch_ns\t%lld", (long long)settings->host_launch_ns);
    vn_record_locked("H\tlaunch_latency_ns\t%lld", (long long)settings->launch_latency_ns);
    if (settings->link_bytes_per_s[0])
        vn_record_locked("H\tlink_bytes_per_s\t%s", settings->link_bytes_per_s);
    if (settings->node_link_bytes_per_s[0])
        vn_record_locked("H\tnode_link_bytes_per_s\t%s", settings->node_link_bytes_per_s);
    vn_record_locked("H\tcann_version\t%s", settings->cann_version);
    vn_record_locked("H\tlibrary\t%s", vn_build_id);
}

static bool is_open(void)
{
    if (vn_is_forked_child())
        return false;       /* the mapping is the parent's: two writers would overwrite each other */
    if (state == NOT_OPENED)
        open_record();
    return state == OPEN;
}

void vn_record_text_locked(const char *text, size_t length)
{
    if (is_open())
        put(text, length);
}

void vn_record_locked(const char *format, ...)
{
    if (!is_open())
        return;
    char line[6000];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    put(line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

uint64_t vn_next_seq_locked(void)
{
    return seq++;
}

/* Libraries are unloaded in the reverse order of their loading, so torch_npu's own shutdown still was recorded. */
__attribute__((destructor)) static void finish(void)
{
    vn_lock();
    if (state == OPEN && !vn_is_forked_child()) {
        vn_record_locked("Z\t%llu\t%lld", (unsigned long long)(lines + 1), (long long)vn_memory_peak_locked());
        state = CLOSED;
        off_t size = window_start + (off_t)window_used;
        munmap(window, window_size);
        window = NULL;
        if (ftruncate(file, size))
            fprintf(stderr, "virtual NPU: cannot cut the record to its size: %s\n", strerror(errno));
        close(file);
    }
    vn_unlock();
}

const char *vn_escape(const char *text, char *into, size_t size)
{
    size_t used = 0;
    for (; *text && used + 2 < size; text++) {
        char letter = *text == '\t' ? 't' : *text == '\n' ? 'n' : *text == '\r' ? 'r' : *text == '\\' ? '\\' : 0;
        if (letter)
            into[used++] = '\\';
        into[used++] = letter ? letter : *text;
    }
    into[used] = 0;
    return into;
}

/* ---- text that grows -------------------------------------------------------------------------------------------- */

void vn_text_clear(vn_text *text)
{
    text->length = 0;
}

void vn_text_add(vn_text *text, const char *more, size_t length)
{
    if (text->length + length + 1 > text->capacity) {
        size_t capacity = (text->length + length + 1) * 2;
        char *larger = realloc(text->text, capacity);
        if (!larger)
            abort();    /* out of host memory: nothing sensible can follow */
        text->text = larger;
        text->capacity = capacity;
    }
    memcpy(text->text + text->length, more, length);
    text->length += length;
    text->text[text->length] = 0;
}

void vn_text_string(vn_text *text, const char *more)
{
    vn_text_add(text, more, strlen(more));
}

void vn_text_int(vn_text *text, int64_t value)
{
    char digits[24], *at = digits + sizeof digits;
    uint64_t rest = value < 0 ? -(uint64_t)value : (uint64_t)value;
    do
        *--at = (char)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0)
        *--at = '-';
    vn_text_add(text, at, (size_t)(digits + sizeof digits - at));
}

void vn_text_real(vn_text *text, double value)
{
    if (!isfinite(value)) {
        vn_text_string(text, isnan(value) ? "null" : value > 0 ? "1e999" : "-1e999");
        return;
    }
    char digits[40];
    for (int precision = 6; precision <= 17; precision += precision == 6 ? 9 : 1) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    vn_text_string(text, digits);
}

void vn_text_json_string(vn_text *text, const char *value)
{
    vn_text_add(text, "\"", 1);
    for (; *value; value++) {
        unsigned char byte = (unsigned char)*value;
        char escape[8];
        if (byte == '"' || byte == '\\')
            vn_text_add(text, (char[]){'\\', *value}, 2);
        else if (byte < 32 || byte > 126) {
            snprintf(escape, sizeof escape, "\\u%04x", byte);   /* bytes of UTF-8 become Latin-1: names are ASCII */
            vn_text_string(text, escape);
        } else
            vn_text_add(text, value, 1);
    }
    vn_text_add(text, "\"", 1);
}

/* ---- definitions ------------------------------------------------------------------------------------------------ */

/* Hash table with separate keys, because a training step makes thousands of calls of a few hundred different kinds. */
typedef struct { uint64_t hash; char *key; size_t length; vn_definition value; } slot;

static slot **slots;
static size_t buckets, used;

static uint64_t hash_of(const char *kind, const char *name, const vn_text *key)
{
    uint64_t hash = 1469598103934665603ull;     /* FNV-1a */
    for (const char *at = kind; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211ull;
    for (const char *at = name; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211ull;
    for (size_t i = 0; i < key->length; i++)
        hash = (hash ^ (unsigned char)key->text[i]) * 1099511628211ull;
    return hash;
}

static void grow(void)
{
    size_t more = buckets ? buckets * 2 : FIRST_BUCKETS;
    slot **larger = calloc(more, sizeof *larger);
    for (size_t i = 0; i < buckets; i++)
        if (slots[i]) {
            size_t at = slots[i]->hash % more;
            while (larger[at])
                at = (at + 1) % more;
            larger[at] = slots[i];
        }
    free(slots);
    slots = larger;
    buckets = more;
}

vn_definition *vn_definition_locked(const char *kind, const char *name, const vn_text *key)
{
    if (used * 2 >= buckets)
        grow();
    uint64_t hash = hash_of(kind, name, key);
    size_t name_length = strlen(name), at = hash % buckets;
    for (; slots[at]; at = (at + 1) % buckets) {
        const slot *one = slots[at];
        if (one->hash == hash && one->length == name_length + 1 + key->length
            && !memcmp(one->key, name, name_length + 1)
            && !memcmp(one->key + name_length + 1, key->text, key->length)) {
            slots[at]->value.is_new = false;
            return &slots[at]->value;
        }
    }
    slot *one = calloc(1, sizeof *one);
    one->hash = hash;
    one->length = name_length + 1 + key->length;
    one->key = malloc(one->length);
    memcpy(one->key, name, name_length + 1);
    memcpy(one->key + name_length + 1, key->text, key->length);
    one->value = (vn_definition){.id = (int)used, .is_new = true};
    slots[at] = one;
    used++;
    return &one->value;
}

void vn_definition_write_locked(const vn_definition *definition, const char *kind, const char *name,
                                const vn_text *json)
{
    static vn_text line;
    vn_text_clear(&line);
    vn_text_string(&line, "D\t");
    vn_text_int(&line, definition->id);
    vn_text_string(&line, "\t");
    vn_text_string(&line, kind);
    vn_text_string(&line, "\t");
    vn_text_string(&line, name);
    vn_text_string(&line, "\t");
    vn_text_add(&line, json->text, json->length);
    vn_record_text_locked(line.text, line.length);
}
