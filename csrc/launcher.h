/* Between launcher.c and diagnosis.c: what failed, and the words for it. */
#ifndef NETLESS_LAUNCHER_H
#define NETLESS_LAUNCHER_H

#include "spawn.h"

struct netless_finding {
    const char *cause;          /* a stable token */
    const char *meaning;
    const char *hint;
};

struct netless_name {
    int number;
    const char *name;
};

/* Cause, meaning and hint of a step that failed. */
struct netless_finding netless_explain(const struct netless_report *report);

/* Out of memory, processes or descriptors: no matter of isolation. */
int netless_is_resource_error(int error);

#endif
