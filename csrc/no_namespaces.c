/* What only Linux has, for every other system. */
#include "spawn.h"

#include <errno.h>
#include <string.h>

int netless_namespace_make(int map_root, struct netless_namespace *made,
                           struct netless_report *report)
{
    (void)map_root;
    (void)made;
    memset(report, 0, sizeof *report);
    report->step = NETLESS_STEP_UNSUPPORTED;
    report->error = ENOSYS;
    return -1;
}
int netless_namespace_make_alone(int map_root, struct netless_namespace *made,
                                 struct netless_report *report)
{
    return netless_namespace_make(map_root, made, report);
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
int netless_is_mount_refused(int without_child)
{
    (void)without_child;
    return 0;
}
int netless_try_unshare(int flags)
{
    (void)flags;
    return ENOSYS;
}
