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
int netless_namespace_make(int map_root, struct netless_namespace *made,
                           struct netless_report *report)
{
    (void)map_root;
    (void)made;
    return unsupported(report);
}
void netless_namespace_close(struct netless_namespace *sealed) { (void)sealed; }
void netless_plan_seal(struct netless_plan *plan) { plan->layers = 0; }
void netless_filter_build(uint32_t architecture, int rules, struct netless_filter *filter)
{
    (void)architecture;
    (void)rules;
    filter->length = 0;
}
uint32_t netless_native_architecture(void) { return 0; }
int netless_landlock_abi(void) { return 0; }
int netless_has_root_powers(void) { return 0; }
int netless_spawn(const struct netless_plan *plan, struct netless_request *request)
{
    (void)plan;
    return unsupported(&request->report);
}
int netless_try_unshare(int flags)
{
    (void)flags;
    return ENOSYS;
}
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
int netless_is_fresh(const struct netless_plan *plan)
{
    (void)plan;
    return 0;
}
int netless_fork_begin(const struct netless_plan *plan, struct netless_request *request)
{
    (void)plan;
    return unsupported(&request->report);
}
int netless_fork(void) { return -1; }
int netless_fork_wait(int pid)
{
    (void)pid;
    return -1;
}
void netless_fork_finish(void) { }
void netless_fork_fail(int error) { (void)error; }
char **netless_copy_environ(void) { return NULL; }
