/*
 * PyPy, whose lock cannot be taken and whose at-fork hooks cannot be run from C:
 * cffi releases the lock around every call, and the C API is emulated.
 *
 * So the environment is copied as any C library would read it, and preexec_fn
 * is refused (_native.py) instead of being run in a child whose interpreter
 * might wait for ever.
 */
#include "spawn.h"

#include <errno.h>
#include <stddef.h>

int netless_popen(const struct netless_plan *plan, struct netless_request *request)
{
    if (!request->has_env) {
        request->environ_copy = netless_duplicate(netless_environ());
        if (request->environ_copy == NULL)
            return netless_fail(&request->report, NETLESS_STEP_MEMORY);
    }
    return netless_spawn(plan, request);
}

int netless_fork(struct netless_handle *handle)
{
    (void)handle;
    errno = ENOSYS;
    return -1;
}

int netless_add_spawn(void)
{
    return -1;
}
