/* Systems without a mechanism: everything that would start a child refuses. */
#include "spawn.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

static int unsupported(struct netless_report *report)
{
    memset(report, 0, sizeof *report);
    report->step = NETLESS_STEP_UNSUPPORTED;
    report->error = ENOSYS;
    return -1;
}

const char *netless_mechanism(void) { return ""; }
int netless_spawn(const struct netless_plan *plan, struct netless_request *request)
{
    (void)plan;
    return unsupported(&request->report);
}
int netless_popen(const struct netless_plan *plan, struct netless_request *request)
{
    return netless_spawn(plan, request);
}
int netless_add_spawn(void) { return -1; }
int netless_isolate(const struct netless_plan *plan, struct netless_report *report)
{
    (void)plan;
    return unsupported(report);
}
int netless_exec(const struct netless_plan *plan, struct netless_request *request)
{
    (void)plan;
    return unsupported(&request->report);
}
int netless_is_callers(const struct netless_plan *plan)
{
    (void)plan;
    return 0;
}
int netless_is_fresh(const struct netless_plan *plan)
{
    (void)plan;
    return 0;
}
int netless_fork_begin(struct netless_handle *handle, const struct netless_plan *plan,
                       struct netless_request *request)
{
    (void)plan;
    handle->launch = NULL;
    return unsupported(&request->report);
}
int netless_fork(struct netless_handle *handle)
{
    (void)handle;
    return -1;
}
int netless_fork_wait(struct netless_handle *handle)
{
    (void)handle;
    return -1;
}
void netless_fork_finish(struct netless_handle *handle) { (void)handle; }
void netless_fork_fail(struct netless_handle *handle, int error)
{
    (void)handle;
    (void)error;
}
void netless_fork_discard(struct netless_handle *handle) { (void)handle; }
int netless_classify(int fd, int unix_sockets, int *family)
{
    (void)fd;
    (void)unix_sockets;
    *family = -1;
    return NETLESS_KIND_UNKNOWN;
}
