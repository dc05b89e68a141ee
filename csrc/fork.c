/*
 * The slow path: a fork that comes back to the interpreter, for preexec_fn and for workers.
 *
 * The launch is on the heap, since what the interpreter runs on the way (hooks, signal
 * handlers) may begin another one, or end this one by an exception.
 */
#include "spawn.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

int netless_fork_begin(struct netless_handle *handle, const struct netless_plan *plan,
                       struct netless_request *request)
{
    struct netless_launch *launch = malloc(sizeof *launch);

    handle->launch = launch;
    errno = 0;
    if (launch == NULL)
        return netless_fail(&request->report, NETLESS_STEP_MEMORY);
    *launch = (struct netless_launch){.plan = plan, .request = request, .channel = {-1, -1},
                                      .parent = getpid()};
    if (!netless_is_callers(plan))
        return netless_fail(&request->report, NETLESS_STEP_STALE);
    return netless_open_channel(launch) < 0 ? -1 : netless_prepare(launch);
}

/* In the child. What the parent waits for is a message, not the end of the channel, which
   others may keep open. */
static void settle(struct netless_launch *launch)
{
    if (netless_settle_child(launch) < 0)
        netless_give_up(launch);
    if (netless_send(launch->channel[1], &launch->request->report) < 0)
        _exit(127);
    netless_discard(launch);
}

/* Called by the interpreter's glue in place of fork: the child is isolated
   before any at-fork hook of the interpreter runs in it. */
pid_t netless_fork_isolated(struct netless_launch *launch)
{
    netless_block_signals(&launch->mask);
    netless_before_fork();
    pid_t pid = fork();
    netless_after_fork(pid);
    if (pid == 0) {
        netless_close_others_channels(launch);
        netless_close_channel(launch, 0);
        if (launch->request->stays)
            settle(launch);
        else if (netless_prepare_child(launch) < 0)
            netless_give_up(launch);
        return 0;
    }
    launch->pid = pid > 0 ? pid : 0;
    if (pid < 0)
        netless_fail(&launch->request->report, NETLESS_STEP_CLONE);
    netless_restore_signals(&launch->mask);
    return pid;
}

/* 1 where a signal came first, so that the interpreter can run its handler. */
int netless_fork_wait(struct netless_handle *handle)
{
    struct netless_launch *launch = handle->launch;
    struct pollfd readable = {.fd = launch->channel[0], .events = POLLIN};
    pid_t pid = launch->pid;

    if (pid <= 0)
        return -1;
    if (launch->channel[1] >= 0) {
        netless_close_channel(launch, 1);
        if (netless_meet_child(launch, pid) < 0) {
            launch->pid = 0;
            netless_reap(pid);
            return -1;
        }
    }
    if (poll(&readable, 1, -1) < 0 && errno == EINTR)
        return 1;
    return netless_take_outcome(launch);
}

/* The environment as preexec_fn left it. */
void netless_fork_finish(struct netless_handle *handle)
{
    struct netless_launch *launch = handle->launch;

    if (!launch->request->has_env)
        launch->envp = netless_environ();
    netless_execute(launch);
    netless_give_up(launch);
}

void netless_fork_fail(struct netless_handle *handle, int error)
{
    errno = error;
    netless_fail(&handle->launch->request->report, NETLESS_STEP_PREEXEC);
    netless_give_up(handle->launch);
}

void netless_fork_discard(struct netless_handle *handle)
{
    struct netless_launch *launch = handle->launch;

    handle->launch = NULL;
    if (launch == NULL || launch->parent != getpid())
        return;                 /* a worker has copies of its parent's launches, and its own */
    if (launch->pid > 0) {
        kill(launch->pid, SIGKILL);
        netless_reap(launch->pid);
    }
    netless_discard(launch);
    free(launch);
}
