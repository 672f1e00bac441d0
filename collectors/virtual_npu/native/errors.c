/* Errors as the CANN libraries report them: a return code, and the text of aclGetRecentErrMsg for this thread. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

enum { MESSAGE_BYTES = 2048 };

static __thread char message[MESSAGE_BYTES];
static __thread char last_shown[MESSAGE_BYTES];
static __thread int last_code;

void vn_set_message(const char *text)
{
    snprintf(message, sizeof message, "%s", text);
}

static int note(bool is_locked, const char *function, int code, const char *format, va_list arguments)
{
    char text[MESSAGE_BYTES / 2], escaped[MESSAGE_BYTES];
    vsnprintf(text, sizeof text, format, arguments);
    /* Layout of a message of CANN's error manager: code, process and time come first. */
    char stamp[64];
    time_t now = time(NULL);
    struct tm parts;
    strftime(stamp, sizeof stamp, "%Y-%m-%d-%H:%M:%S", localtime_r(&now, &parts));
    const char *rest = strchr(text, ':');
    if (rest && rest - text == 6)       /* "EL0004: ..." */
        snprintf(message, sizeof message, "%.6s: [PID: %d] %s.000.000 %s", text, (int)getpid(), stamp, rest + 2);
    else
        snprintf(message, sizeof message, "%s", text);
    last_code = code;
    if (!is_locked)
        vn_lock();
    vn_record_locked("X\t%lld\t%s\t%d\t%s", (long long)vn_now_locked(), function, code,
                     vn_escape(text, escaped, sizeof escaped));
    if (!is_locked)
        vn_unlock();
    return code;
}

int vn_fail(const char *function, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    note(false, function, code, format, arguments);
    va_end(arguments);
    return code;
}

int vn_fail_locked(const char *function, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    note(true, function, code, format, arguments);
    va_end(arguments);
    return code;
}

/* The real function hands a message out once. The caller may keep the pointer until its next call. */
const char *aclGetRecentErrMsg(void)
{
    memcpy(last_shown, message, sizeof message);
    message[0] = 0;
    return last_shown;
}

aclError aclrtPeekAtLastError(aclrtLastErrLevel level)
{
    (void)level;
    return last_code;
}

aclError aclrtGetLastError(aclrtLastErrLevel level)
{
    (void)level;
    int code = last_code;
    last_code = 0;
    return code;
}
