/*
 * Child path, from its start to execve, and report: what is the same on every
 * platform.
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
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* The most numbers that are closed one by one. */
#define MOST_DESCRIPTORS (1 << 20)

int netless_fail(struct netless_report *report, enum netless_step step)
{
    report->step = step;
    report->error = errno;
    return -1;
}

void netless_block_signals(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    netless_set_mask(&all, before);
}

void netless_restore_signals(const sigset_t *before)
{
    netless_set_mask(before, NULL);
}

/* The descriptor moved out of the way of 0, 1 and 2; -1 and closed on failure. */
int netless_above_stdio(int fd)
{
    if (fd < 0 || fd > 2)
        return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int error = errno;
    close(fd);
    errno = error;
    return moved;
}

/* atoi, but async-signal-safe by construction; -1 for what is no number. */
int netless_number(const char *text)
{
    int number = 0;
    if (*text == '\0')
        return -1;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9' || number > 100000000)
            return -1;
        number = number * 10 + (*text - '0');
    }
    return number;
}

/* ---- before the clone: arguments into plain C memory ---- */

/* One block: the pointers, then the strings. NULL when out of memory. */
char **netless_duplicate(char **variables)
{
    size_t count = 0, size = 0;

    for (; variables != NULL && variables[count] != NULL; count++)
        size += strlen(variables[count]) + 1;
    char **copy = malloc((count + 1) * sizeof(char *) + size);
    if (copy == NULL)
        return NULL;
    char *text = (char *)(copy + count + 1);
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(variables[i]) + 1;
        copy[i] = memcpy(text, variables[i], length);
        text += length;
    }
    copy[count] = NULL;
    return copy;
}

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
    if (!request->has_env)
        launch->envp = request->environ_copy != NULL ? request->environ_copy : netless_environ();

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

/* Whatever the launch took; the environment's copy too. */
void netless_discard(struct netless_launch *launch)
{
    netless_close_channel(launch, 0);
    netless_close_channel(launch, 1);
    if (launch->page != NULL)
        munmap(launch->page, sizeof *launch->page);
    launch->page = NULL;
    free(launch->memory);
    free(launch->request->environ_copy);
    launch->memory = launch->request->environ_copy = NULL;
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

/* ---- descriptors: looked at in the child, where no other thread can change them ---- */

static int is_kept(const struct netless_launch *launch, int fd)
{
    for (int i = 0; i < launch->keep_count; i++)
        if (launch->keep[i] == fd)
            return 1;
    return 0;
}

static int close_unless_kept(struct netless_launch *launch, int fd)
{
    if (!is_kept(launch, fd))
        close(fd);
    return 0;
}

/* By ranges; else what the system lists; else every number that can be open. */
static int close_descriptors(struct netless_launch *launch)
{
    struct rlimit limit;

    if (netless_close_ranges(launch) == 0 ||
        netless_each_descriptor(launch, close_unless_kept) == 0)
        return 0;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return -1;
    if (limit.rlim_max > MOST_DESCRIPTORS) {    /* too many to try: one could be left open */
        errno = EMFILE;
        return -1;
    }
    for (int fd = 3; (rlim_t)fd < limit.rlim_max; fd++)
        close_unless_kept(launch, fd);
    return 0;
}

/* The way out of the isolation that a descriptor may be. */
static int look_at(struct netless_launch *launch, int fd)
{
    struct netless_report *report = &launch->request->report;

    report->kind = netless_classify(fd, launch->plan->unix_sockets, &report->family);
    if (report->kind == NETLESS_KIND_FINE)
        return 0;
    report->fd = fd;
    errno = EPERM;
    return netless_fail(report, NETLESS_STEP_DESCRIPTORS);
}

static int check(struct netless_launch *launch, int fd)
{
    int flags = fcntl(fd, F_GETFD);

    if ((flags < 0 && errno == EBADF) || fd == launch->channel[1])
        return 0;                       /* not there, or this launch's own */
    if (flags >= 0 && (flags & FD_CLOEXEC) && !launch->request->stays)
        return 0;                       /* not there after execve */
    return look_at(launch, fd);
}

/* One that nearly always is there and stays: its flags are asked for when it would be refused. */
static int check_standard(struct netless_launch *launch, int fd)
{
    int family;

    if (netless_classify(fd, launch->plan->unix_sockets, &family) == NETLESS_KIND_FINE)
        return 0;
    return check(launch, fd);
}

static int check_descriptors(struct netless_launch *launch)
{
    const struct netless_request *request = launch->request;
    struct netless_report *report = &launch->request->report;

    if (launch->plan->inherit_sockets)
        return 0;
    for (int fd = 0; fd < 3; fd++)
        if (check_standard(launch, fd) < 0)
            return -1;
    if (request->close_fds) {
        for (int i = 0; i < launch->keep_count; i++)
            if (check(launch, launch->keep[i]) < 0)
                return -1;
        return 0;
    }
    if (netless_each_descriptor(launch, check) < 0 && report->step == NETLESS_STEP_NONE) {
        report->fd = -1;
        report->kind = NETLESS_KIND_UNKNOWN;
        return netless_fail(report, NETLESS_STEP_DESCRIPTORS);
    }
    return report->step == NETLESS_STEP_NONE ? 0 : -1;
}

/* The number stays taken, so that nothing else can come to stand under it. */
static int shut(struct netless_launch *launch, int fd)
{
    int family;

    if (fd == launch->channel[1] ||
        netless_classify(fd, launch->plan->unix_sockets, &family) == NETLESS_KIND_FINE)
        return 0;
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nothing < 0)
        return -1;
    int result = dup2(nothing, fd);
    close(nothing);
    if (result < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return -1;
    errno = EEXIST;             /* should it still be there */
    return netless_classify(fd, launch->plan->unix_sockets, &family) == NETLESS_KIND_FINE ? 0 : -1;
}

/* A child that stays has all that its parent had open, close-on-exec or not.
   What leads out is shut; 0, 1 and 2 are refused, as they are to a program. */
static int shut_descriptors(struct netless_launch *launch)
{
    struct netless_report *report = &launch->request->report;

    if (launch->plan->inherit_sockets)
        return 0;
    if (check_descriptors(launch) < 0)
        return -1;
    report->fd = -1;
    report->kind = NETLESS_KIND_UNKNOWN;
    NETLESS_TRY(report, NETLESS_STEP_DESCRIPTORS, netless_each_descriptor(launch, shut));
    return 0;
}

static int default_signal(int number)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    return sigaction(number, &action, NULL);
}

/* No core is written of memory that is the parent's, or a copy of it: siblings can send
   these signals to a child that has only begun, and raise its limit (prlimit(2)).  execve
   takes the handler away. */
static const int dumping_signals[] = {
    SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGXCPU, SIGXFSZ, SIGSYS,
};

static void end_without_core(int number)
{
    (void)number;
    kill(getpid(), SIGKILL);
    _exit(127);                 /* as process 1 of a pid namespace */
}

static int guard_memory(void)
{
    struct sigaction end, before;

    memset(&end, 0, sizeof end);
    end.sa_handler = end_without_core;
    for (size_t i = 0; i < sizeof dumping_signals / sizeof *dumping_signals; i++) {
        if (sigaction(dumping_signals[i], &end, &before) < 0)
            return -1;
        if (before.sa_handler == SIG_IGN && sigaction(dumping_signals[i], &before, NULL) < 0)
            return -1;
    }
    return 0;
}

/* Takes the parent's handlers away, so that none can run here, and only then
   unblocks.  What stays blocked, execve resets. */
static int restore_signals(const struct netless_launch *launch, struct netless_report *report)
{
    for (int number = 1; number < NSIG && !launch->has_no_handlers; number++) {
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
    if (!launch->in_place)
        NETLESS_TRY(report, NETLESS_STEP_SIGNALS, guard_memory());
    NETLESS_TRY(report, NETLESS_STEP_SIGNALS, netless_set_mask(&launch->mask, NULL));
    return 0;
}

/* The only way out but execve: the report goes to the parent, nothing is executed. */
_Noreturn void netless_give_up(struct netless_launch *launch)
{
    ssize_t sent = 0;
    if (launch->page != NULL)
        *launch->page = launch->request->report;
    if (launch->channel[1] >= 0)
        sent = netless_send(launch->channel[1], &launch->request->report);
    _exit(launch->request->report.step == NETLESS_STEP_NONE && sent >= 0 ? 0 : 127);
}

/* Isolation, then everything up to the point where preexec_fn runs. */
int netless_prepare_child(struct netless_launch *launch)
{
    const struct netless_request *request = launch->request;
    struct netless_report *report = &launch->request->report;
    struct netless_powers before;

    if (netless_isolate_child(launch, &before) < 0)
        return -1;
    if (request->probe)
        netless_give_up(launch);        /* with nothing to complain about */
    if (place_stdio(request, report) < 0 || check_descriptors(launch) < 0)
        return -1;
    if (place_process(request, report) < 0 || netless_take_ids(request, report) < 0)
        return -1;
    return restore_signals(launch, report);
}

/* In place of netless_prepare_child, for a child that goes on as a copy of its parent. */
int netless_settle_child(struct netless_launch *launch)
{
    struct netless_report *report = &launch->request->report;
    struct netless_powers before;

    if (netless_isolate_child(launch, &before) < 0 || shut_descriptors(launch) < 0)
        return -1;
    NETLESS_TRY(report, NETLESS_STEP_CAPABILITIES, netless_drop_capabilities(&before));
    netless_restore_signals(&launch->mask);
    return 0;
}

/* Comes back on failure only. The first error that is not "not found" wins. */
int netless_execute(struct netless_launch *launch)
{
    struct netless_report *report = &launch->request->report;
    int first = 0;

    if (launch->request->close_fds)
        NETLESS_TRY(report, NETLESS_STEP_CLOSE_FDS, close_descriptors(launch));
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

static int child(void *argument)
{
    struct netless_launch *launch = argument;

    if (netless_memory_of(launch) != NETLESS_MEMORY_SHARED) {
        netless_close_others_channels(launch);
        netless_close_channel(launch, 0);
    }
    if (netless_prepare_child(launch) == 0)
        netless_execute(launch);
    netless_give_up(launch);
}

/* ---- the parent ---- */

/* Of a child with a channel: it has executed when that ends without a word; one that stays
   says that it has settled.  What the child did is unknown where there is no telling. */
int netless_take_outcome(struct netless_launch *launch)
{
    struct netless_report *report = &launch->request->report;
    ssize_t size = netless_receive(launch->channel[0], report);
    pid_t pid = launch->pid;

    launch->pid = 0;
    if (size == 0 && launch->request->stays && report->step == NETLESS_STEP_NONE) {
        errno = EPIPE;
        size = -1;
    }
    if (size < 0) {
        netless_fail(report, NETLESS_STEP_CHANNEL);
        kill(pid, SIGKILL);
    }
    if (report->step == NETLESS_STEP_NONE)
        return 0;
    netless_reap(pid);
    return -1;
}

static int await_child(struct netless_launch *launch)
{
    netless_close_channel(launch, 1);
    if (netless_meet_child(launch, launch->pid) == 0)
        return netless_take_outcome(launch);
    netless_reap(launch->pid);
    return -1;
}

/* Where the child's report goes, if it has no channel and no memory of this process's. */
static int share_page(struct netless_launch *launch)
{
    void *page = mmap(NULL, sizeof *launch->page, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return netless_fail(&launch->request->report, NETLESS_STEP_MEMORY);
    launch->page = page;
    return 0;
}

static pid_t launch_child(struct netless_launch *launch)
{
    struct netless_report *report = &launch->request->report;
    enum netless_memory memory = netless_memory_of(launch);

    if (memory == NETLESS_MEMORY_OWN && netless_open_channel(launch) < 0)
        return -1;
    if (memory == NETLESS_MEMORY_COPIED && share_page(launch) < 0)
        return -1;
    if (netless_prepare(launch) < 0)
        return -1;
    netless_block_signals(&launch->mask);
    if (memory == NETLESS_MEMORY_OWN)
        netless_before_fork();
    launch->pid = netless_start(child, launch);
    int error = errno;
    if (memory == NETLESS_MEMORY_OWN)
        netless_after_fork(launch->pid);
    netless_restore_signals(&launch->mask);
    errno = error;
    pid_t pid = launch->pid;
    NETLESS_TRY(report, NETLESS_STEP_CLONE, pid);
    if (memory == NETLESS_MEMORY_OWN)
        return await_child(launch) < 0 ? -1 : pid;
    if (memory == NETLESS_MEMORY_COPIED)
        *report = *launch->page;
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
    if (netless_is_callers(plan))
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

int netless_exec(const struct netless_plan *plan, struct netless_request *request)
{
    struct netless_launch launch = {.plan = plan, .request = request, .channel = {-1, -1},
                                    .in_place = 1, .has_no_handlers = request->has_no_handlers};

    if (netless_prepare(&launch) == 0 && netless_isolate(plan, &request->report) == 0) {
        netless_block_signals(&launch.mask);
        if (check_descriptors(&launch) == 0 &&
            restore_signals(&launch, &request->report) == 0)
            netless_execute(&launch);
        netless_restore_signals(&launch.mask);
    }
    netless_discard(&launch);
    return -1;
}
