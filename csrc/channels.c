/*
 * The channels of launches that are under way at the same time.
 *
 * A parent knows that its child has executed when the channel ends.  A process that is
 * forked meanwhile has a copy of its ends and may live on for long, so each one closes those
 * that are not its own, first of all.
 */
#include "spawn.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

/* Held for a few instructions, and across fork, so that the child finds a whole list.
   By whom: a process that was forked by others may find it held by a thread that it does
   not have. */
static _Atomic pid_t holder;
static struct netless_launch *list;
static pid_t owner;             /* whose launches they are: not those of a parent */

static void lock(void)
{
    pid_t self = getpid(), found = 0;
    int error = errno;

    while (!atomic_compare_exchange_weak(&holder, &found, self)) {
        if (found == self)
            sched_yield();      /* another thread's */
        else if (found != 0 && atomic_compare_exchange_weak(&holder, &found, self))
            break;              /* of before the fork that made this process */
        found = 0;
    }
    if (owner != self)
        list = NULL;
    owner = self;
    errno = error;
}

static void unlock(void)
{
    atomic_store(&holder, 0);
}

/* Made and listed in one, so that no process can be forked that knows nothing of it. */
int netless_open_channel(struct netless_launch *launch)
{
    lock();
    int result = netless_channel(launch->channel);
    if (result == 0) {
        launch->next = list;
        list = launch;
    }
    unlock();
    return result == 0 ? 0 : netless_fail(&launch->request->report, NETLESS_STEP_CHANNEL);
}

static void unlist(const struct netless_launch *launch)
{
    for (struct netless_launch **at = &list; *at != NULL; at = &(*at)->next)
        if (*at == launch) {
            *at = launch->next;
            return;
        }
}

void netless_close_channel(struct netless_launch *launch, int end)
{
    if (launch->channel[end] < 0)
        return;
    lock();
    close(launch->channel[end]);
    launch->channel[end] = -1;
    if (launch->channel[!end] < 0)
        unlist(launch);
    unlock();
}

void netless_before_fork(void)
{
    lock();
}

void netless_after_fork(pid_t pid)
{
    if (pid != 0)
        unlock();
}

/* In the child, whose list is still the parent's. */
void netless_close_others_channels(const struct netless_launch *own)
{
    for (const struct netless_launch *other = list; other != NULL; other = other->next)
        for (int end = 0; end < 2 && other != own; end++)
            if (other->channel[end] >= 0)
                close(other->channel[end]);
}
