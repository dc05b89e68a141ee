/*
 * Clone, child path, report.
 *
 * Contract of the child path (from child() down to execve): until the execve it
 * may share the parent's memory, so it calls async-signal-safe functions only,
 * allocates nothing, takes no lock, formats no text, and writes to nothing but
 * its own stack and the report.  Everything it needs was converted before.
 */
#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef SYS_setgroups32          /* 32-bit machines keep 16-bit ids under the old numbers */
#define SYS_SETGROUPS SYS_setgroups32
#define SYS_SETRESGID SYS_setresgid32
#define SYS_SETRESUID SYS_setresuid32
#else
#define SYS_SETGROUPS SYS_setgroups
#define SYS_SETRESGID SYS_setresgid
#define SYS_SETRESUID SYS_setresuid
#endif

/* The child needs 3 KB; sanitizers and signal frames want more. */
#define CHILD_STACK_SIZE 65536

int netless_fail(struct netless_report *report, enum netless_step step)
{
    report->step = step;
    report->error = errno;
    return -1;
}

/* Runs function(argument) in a new process, on a stack inside this frame: its
   own copy of it, or with CLONE_VFORK the only user of it until it is done. */
pid_t netless_clone(int (*function)(void *), void *argument, int flags)
{
    _Alignas(16) char stack[CHILD_STACK_SIZE];
    return clone(function, stack + sizeof stack, flags, argument);
}

/* sigprocmask, since pthread_sigmask would tie the wheel to glibc 2.32; on
   Linux both change the calling thread's mask only. */
void netless_block_signals(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, before);
}

void netless_restore_signals(const sigset_t *before)
{
    sigprocmask(SIG_SETMASK, before, NULL);
}

/* The wait status; -1 where it cannot be had. */
int netless_reap(pid_t pid)
{
    int status = -1;
    while (waitpid(pid, &status, __WALL) < 0 && errno == EINTR)
        continue;
    return status;
}

/* ---- before the clone: arguments into plain C memory ---- */

static void split(const char *strings, int count, char **pointers)
{
    for (int i = 0; i < count; i++) {
        pointers[i] = (char *)strings;
        strings += strlen(strings) + 1;
    }
    pointers[count] = NULL;
}

int netless_prepare(struct netless_launch *launch)
{
    struct netless_request *request = launch->request;
    int env_count = request->has_env ? request->env_count : 0;
    size_t pointers = (size_t)request->argc + env_count + request->candidate_count + 3;
    size_t numbers = (size_t)request->keep_count + 1;

    launch->memory = malloc(pointers * sizeof(char *) + numbers * sizeof(int));
    if (launch->memory == NULL)
        return netless_fail(&request->report, NETLESS_STEP_MEMORY);
    launch->argv = launch->memory;
    launch->envp = launch->argv + request->argc + 1;
    launch->candidates = launch->envp + env_count + 1;
    launch->keep = (int *)(launch->candidates + request->candidate_count + 1);
    split(request->argv, request->argc, launch->argv);
    split(request->env, env_count, launch->envp);
    split(request->candidates, request->candidate_count, launch->candidates);
    if (!request->has_env && request->environ_copy != NULL)
        launch->envp = request->environ_copy;

    int kept = 0, placed = launch->channel[1] < 0;
    for (int i = 0; i < request->keep_count; i++) {
        if (!placed && launch->channel[1] < request->keep[i]) {
            launch->keep[kept++] = launch->channel[1];
            placed = 1;
        }
        launch->keep[kept++] = request->keep[i];
    }
    if (!placed)
        launch->keep[kept++] = launch->channel[1];
    launch->keep_count = kept;
    return 0;
}

/* Whatever netless_prepare and the channel took; the environment's copy too. */
void netless_discard(struct netless_launch *launch)
{
    for (int i = 0; i < 2; i++)
        if (launch->channel[i] >= 0)
            close(launch->channel[i]);
    free(launch->memory);
    free(launch->request->environ_copy);
    launch->request->environ_copy = NULL;
}

/* ---- the child ---- */

static int inheritable(int fd)
{
    int flags = fcntl(fd, F_GETFD);
    return flags < 0 ? -1 : fcntl(fd, F_SETFD, flags & ~FD_CLOEXEC);
}

/* A duplicate that is none of 0, 1, 2 and is gone after execve. */
static int out_of_the_way(int fd)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

static int place_stdio(const struct netless_request *request, struct netless_report *report)
{
    int source[3];

    for (int i = 0; i < request->keep_count; i++)
        NETLESS_TRY(report, NETLESS_STEP_STDIO, inheritable(request->keep[i]));
    for (int i = 0; i < 3; i++)
        if (request->parent_ends[i] >= 0)
            NETLESS_TRY(report, NETLESS_STEP_STDIO, close(request->parent_ends[i]));
    for (int i = 0; i < 3; i++) {
        source[i] = request->stdio[i];
        if (source[i] >= 0 && source[i] < i)    /* a lower dup2 would overwrite it */
            NETLESS_TRY(report, NETLESS_STEP_STDIO, source[i] = out_of_the_way(source[i]));
    }
    for (int i = 0; i < 3; i++) {
        if (source[i] == i)
            NETLESS_TRY(report, NETLESS_STEP_STDIO, inheritable(i));
        else if (source[i] >= 0)
            NETLESS_TRY(report, NETLESS_STEP_STDIO, dup2(source[i], i));
    }
    return 0;
}

static int place_process(const struct netless_request *request, struct netless_report *report)
{
    if (request->cwd != NULL)
        NETLESS_TRY(report, NETLESS_STEP_CWD, chdir(request->cwd));
    if (request->umask >= 0)
        umask((mode_t)request->umask);
    if (request->new_session)
        NETLESS_TRY(report, NETLESS_STEP_SESSION, setsid());
    if (request->process_group >= 0)
        NETLESS_TRY(report, NETLESS_STEP_PROCESS_GROUP, setpgid(0, request->process_group));
    return 0;
}

/* An id that the namespace does not map is EINVAL here, and one that the caller
   may not take outside: EPERM, which is what subprocess users expect. */
static long id_result(long result)
{
    if (result < 0 && errno == EINVAL)
        errno = EPERM;
    return result;
}

/* Raw system calls: libc's own tell every thread of the process, and this child
   has none of the threads that libc's copied list names. */
static int take_ids(const struct netless_request *request, struct netless_report *report)
{
    if (request->has_groups)
        NETLESS_TRY(report, NETLESS_STEP_GROUPS,
                    id_result(syscall(SYS_SETGROUPS, (size_t)request->group_count, request->groups)));
    if (request->has_gid)
        NETLESS_TRY(report, NETLESS_STEP_GID,
                    id_result(syscall(SYS_SETRESGID, request->gid, request->gid, request->gid)));
    if (request->has_uid)
        NETLESS_TRY(report, NETLESS_STEP_UID,
                    id_result(syscall(SYS_SETRESUID, request->uid, request->uid, request->uid)));
    return 0;
}

static int default_signal(int number)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    return sigaction(number, &action, NULL);
}

/* Takes the parent's handlers away, so that none can run here, and only then
   unblocks.  What stays blocked, execve resets. */
static int restore_signals(const struct netless_launch *launch, struct netless_report *report)
{
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (number == SIGKILL || number == SIGSTOP || sigismember(&launch->mask, number) == 1)
            continue;
        if (sigaction(number, NULL, &action) < 0)       /* libc's own signals */
            continue;
        if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN)
            NETLESS_TRY(report, NETLESS_STEP_SIGNALS, default_signal(number));
    }
    if (launch->request->restore_signals) {
        NETLESS_TRY(report, NETLESS_STEP_SIGNALS, default_signal(SIGPIPE));
        NETLESS_TRY(report, NETLESS_STEP_SIGNALS, default_signal(SIGXFSZ));
    }
    NETLESS_TRY(report, NETLESS_STEP_SIGNALS, sigprocmask(SIG_SETMASK, &launch->mask, NULL));
    return 0;
}

/* Isolation, then everything up to the point where preexec_fn runs. */
int netless_prepare_child(struct netless_launch *launch)
{
    const struct netless_request *request = launch->request;
    struct netless_report *report = &launch->request->report;

    if (netless_enter(launch) < 0 || netless_seal(launch->plan, report) < 0)
        return -1;
    if (request->probe)
        netless_give_up(launch);        /* with nothing to complain about */
    if (place_stdio(request, report) < 0 || netless_check_descriptors(launch) < 0)
        return -1;
    if (place_process(request, report) < 0 || take_ids(request, report) < 0)
        return -1;
    return restore_signals(launch, report);
}

/* Comes back on failure only. The first error that is not "not found" wins. */
int netless_execute(struct netless_launch *launch)
{
    struct netless_report *report = &launch->request->report;
    int first = 0;

    if (launch->request->close_fds)
        NETLESS_TRY(report, NETLESS_STEP_CLOSE_FDS, netless_close_descriptors(launch));
    errno = ENOENT;
    for (char **path = launch->candidates; *path != NULL; path++) {
        execve(*path, launch->argv, launch->envp);
        if (errno != ENOENT && errno != ENOTDIR && first == 0)
            first = errno;
    }
    if (first != 0)
        errno = first;
    return netless_fail(report, NETLESS_STEP_EXEC);
}

/* The only other way out: the report goes to the parent, nothing is executed. */
_Noreturn void netless_give_up(struct netless_launch *launch)
{
    ssize_t sent = 0;
    if (launch->channel[1] >= 0)
        sent = send(launch->channel[1], &launch->request->report,
                    sizeof launch->request->report, MSG_NOSIGNAL);
    _exit(launch->request->report.step == NETLESS_STEP_NONE && sent >= 0 ? 0 : 127);
}

static int child(void *argument)
{
    struct netless_launch *launch = argument;

    if (launch->channel[0] >= 0)
        close(launch->channel[0]);
    if (netless_prepare_child(launch) == 0)
        netless_execute(launch);
    netless_give_up(launch);
}

/* ---- the parent ---- */

/* Waits until a child with memory of its own has executed or given up. */
int netless_await_child(struct netless_launch *launch, pid_t pid)
{
    struct netless_report *report = &launch->request->report;
    ssize_t size;
    int whole;

    close(launch->channel[1]);
    launch->channel[1] = -1;
    if (launch->plan->way == NETLESS_WAY_MAKE &&
        netless_settle_maps(launch->channel[0], launch->plan->map_root, &whole, report) < 0) {
        shutdown(launch->channel[0], SHUT_RDWR);
        netless_reap(pid);
        return -1;
    }
    do {
        size = recv(launch->channel[0], report, sizeof *report, 0);
    } while (size < 0 && errno == EINTR);
    if (size < 0) {             /* the child is what cannot be known about */
        netless_fail(report, NETLESS_STEP_CHANNEL);
        kill(pid, SIGKILL);
    }
    if (report->step == NETLESS_STEP_NONE)
        return 0;
    netless_reap(pid);
    return -1;
}

/* The clone must not share memory where the child changes ids: that would make
   the parent non-dumpable for good.  Nor where the parent has to write maps. */
static int wants_own_memory(const struct netless_launch *launch)
{
    const struct netless_request *request = launch->request;
    return launch->plan->way == NETLESS_WAY_MAKE || request->has_groups || request->has_gid ||
           request->has_uid;
}

static pid_t launch_child(struct netless_launch *launch)
{
    struct netless_report *report = &launch->request->report;
    int own_memory = wants_own_memory(launch);
    int flags = (own_memory ? 0 : CLONE_VM | CLONE_VFORK) | (launch->request->probe ? 0 : SIGCHLD);

    if (own_memory)
        NETLESS_TRY(report, NETLESS_STEP_CHANNEL, netless_channel(launch->channel));
    if (netless_prepare(launch) < 0)
        return -1;
    netless_block_signals(&launch->mask);
    pid_t pid = netless_clone(child, launch, flags);
    int error = errno;
    netless_restore_signals(&launch->mask);
    errno = error;
    NETLESS_TRY(report, NETLESS_STEP_CLONE, pid);
    if (own_memory)
        return netless_await_child(launch, pid) < 0 ? -1 : pid;
    if (report->step == NETLESS_STEP_NONE)
        return pid;
    netless_reap(pid);
    return -1;
}

int netless_spawn(const struct netless_plan *plan, struct netless_request *request)
{
    struct netless_launch launch = {.plan = plan, .request = request, .channel = {-1, -1}};
    pid_t pid = -1;

    errno = 0;
    if (netless_is_fresh(plan))
        pid = launch_child(&launch);
    else
        netless_fail(&request->report, NETLESS_STEP_STALE);
    /* One that was killed on the way would pass for one that met weaker layers. */
    if (pid > 0 && request->probe && netless_reap(pid) != 0) {
        errno = EPIPE;
        pid = netless_fail(&request->report, NETLESS_STEP_CHANNEL);
    }
    netless_discard(&launch);
    return pid;
}

/* ---- the calling process itself ---- */

int netless_isolate(const struct netless_plan *plan, struct netless_report *report)
{
    struct netless_request request = {.probe = 0};
    struct netless_launch launch = {.plan = plan, .request = &request, .channel = {-1, -1}};
    int result = plan->way == NETLESS_WAY_MAKE ? netless_make_alone(plan, &request.report)
                                               : netless_enter(&launch);

    if (result == 0)
        result = netless_seal(plan, &request.report);
    *report = request.report;
    return result;
}

int netless_exec(const struct netless_plan *plan, struct netless_request *request)
{
    struct netless_launch launch = {.plan = plan, .request = request, .channel = {-1, -1}};

    if (netless_prepare(&launch) == 0 && netless_isolate(plan, &request->report) == 0) {
        netless_block_signals(&launch.mask);
        if (netless_check_descriptors(&launch) == 0 &&
            restore_signals(&launch, &request->report) == 0)
            netless_execute(&launch);
        netless_restore_signals(&launch.mask);
    }
    netless_discard(&launch);
    return -1;
}

/* ---- the slow path: a fork that comes back to the interpreter ---- */

/* One per thread, from netless_fork_begin to finish, fail or wait. */
static _Thread_local struct netless_launch forking;

int netless_fork_begin(const struct netless_plan *plan, struct netless_request *request)
{
    forking = (struct netless_launch){.plan = plan, .request = request, .channel = {-1, -1}};
    errno = 0;
    if (!netless_is_fresh(plan)) {
        netless_fail(&request->report, NETLESS_STEP_STALE);
    } else if (netless_channel(forking.channel) < 0) {
        netless_fail(&request->report, NETLESS_STEP_CHANNEL);
    } else if (netless_prepare(&forking) == 0) {
        return 0;
    }
    netless_discard(&forking);
    return -1;
}

int netless_fork_wait(int pid)
{
    int result = pid < 0 ? -1 : netless_await_child(&forking, pid);
    netless_discard(&forking);
    return result;
}

/* The environment as preexec_fn left it. */
void netless_fork_finish(void)
{
    if (!forking.request->has_env)
        forking.envp = environ;
    netless_execute(&forking);
    netless_give_up(&forking);
}

void netless_fork_fail(int error)
{
    errno = error;
    netless_fail(&forking.request->report, NETLESS_STEP_PREEXEC);
    netless_give_up(&forking);
}

/* Called by the interpreter's glue in place of fork: the child is isolated
   before any at-fork hook of the interpreter runs in it. */
pid_t netless_fork_isolated(void)
{
    netless_block_signals(&forking.mask);
    pid_t pid = fork();
    if (pid == 0) {
        close(forking.channel[0]);
        forking.channel[0] = -1;
        if (netless_prepare_child(&forking) < 0)
            netless_give_up(&forking);
        return 0;
    }
    if (pid < 0)
        netless_fail(&forking.request->report, NETLESS_STEP_CLONE);
    netless_restore_signals(&forking.mask);
    return pid;
}
