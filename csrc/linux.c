/*
 * The sealed namespace: made once, joined by every child; or made for one.
 *
 * The maps are always written by a process that stayed outside, because on some
 * systems (Ubuntu's AppArmor restriction) a new user namespace has no power over
 * itself, and because only a capability in the outer namespace may map more
 * than one id (user_namespaces(7)).
 */
#define _GNU_SOURCE
#include "spawn.h"

#include "machine.h"

#include <errno.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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

/* The child needs 6 KB, and as much again for the frame of a signal. */
#define CHILD_STACK_SIZE 16384
#define HOLDER_STACK_SIZE 4096

/* The kernel takes at most one page of map text. */
#define MAP_TEXT_SIZE 4096

int netless_is_callers(const struct netless_plan *plan)
{
    return plan->sealed.euid == geteuid() && plan->sealed.egid == getegid();
}

int netless_is_fresh(const struct netless_plan *plan)
{
    const struct netless_namespace *sealed = &plan->sealed;
    if (!netless_is_callers(plan))
        return 0;
    if (plan->way != NETLESS_WAY_JOIN && plan->way != NETLESS_WAY_JOIN_PRIVATE)
        return 1;
    return netless_is_still(sealed->user_fd, &sealed->user) &&
           netless_is_still(sealed->net_fd, &sealed->net);
}

/* ---- processes ---- */

const char *netless_mechanism(void)
{
    return "namespace";
}

/* clone with a stack of its own for the child, for machines on which netless_clone has no
   other way: inside this frame, so the child's own copy of it, or with CLONE_VFORK the
   child's alone until it is done. */
static pid_t clone_on_own_stack(int (*function)(void *), void *argument, int flags)
{
    _Alignas(16) char stack[CHILD_STACK_SIZE];
    pid_t pid = clone(function, stack + sizeof stack, flags, argument);
    NETLESS_STACK_IS_FREE(stack, sizeof stack);
    return pid;
}

/* Runs function(argument), which does not return, in a new process: in a copy of this one's
   memory, or in the very same with CLONE_VM | CLONE_VFORK. */
static pid_t clone_process(int (*function)(void *), void *argument, int flags)
{
    pid_t pid = (pid_t)netless_clone(flags, function, argument);
    if (pid < 0 && errno == ENOTSUP)
        pid = clone_on_own_stack(function, argument, flags);
    return pid;
}

/* The clone must not share memory where the child changes ids: that would make the parent
   non-dumpable for good.  A parent that has to write maps cannot sleep meanwhile. */
enum netless_memory netless_memory_of(const struct netless_launch *launch)
{
    const struct netless_request *request = launch->request;

    if (launch->plan->way == NETLESS_WAY_MAKE)
        return NETLESS_MEMORY_OWN;
    return request->has_groups || request->has_gid || request->has_uid ? NETLESS_MEMORY_COPIED
                                                                      : NETLESS_MEMORY_SHARED;
}

/* As clone_process, with the caller's signal handlers gone from the child. */
static pid_t clone_without_handlers(int (*function)(void *), void *argument, int flags,
                                    int exit_signal)
{
    struct netless_clone_arguments arguments = {
        .flags = (unsigned int)flags | NETLESS_CLONE_CLEAR_SIGHAND,
        .exit_signal = (unsigned int)exit_signal,
    };
    return (pid_t)netless_clone3(&arguments, function, argument);
}

pid_t netless_start(int (*function)(void *), struct netless_launch *launch)
{
    static const int flags[] = {CLONE_VM | CLONE_VFORK, CLONE_VFORK, 0};
    int memory = flags[netless_memory_of(launch)];
    int exit_signal = launch->request->probe ? 0 : SIGCHLD;     /* a probe is nobody's child */

    launch->has_no_handlers = 1;
    pid_t pid = clone_without_handlers(function, launch, memory, exit_signal);
    if (pid >= 0 || (errno != ENOSYS && errno != EINVAL && errno != EPERM && errno != ENOTSUP))
        return pid;
    launch->has_no_handlers = 0;        /* before Linux 5.5, and under Docker's profile */
    return clone_process(function, launch, memory | exit_signal);
}

int netless_reap(pid_t pid)
{
    int status = -1;
    while (waitpid(pid, &status, __WALL) < 0 && errno == EINTR)
        continue;
    return status;
}

/* sigprocmask, since pthread_sigmask would tie the wheel to glibc 2.32; on
   Linux both change the calling thread's mask only. */
int netless_set_mask(const sigset_t *mask, sigset_t *before)
{
    return sigprocmask(SIG_SETMASK, mask, before);
}

char **netless_environ(void)
{
    return environ;
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
int netless_take_ids(const struct netless_request *request, struct netless_report *report)
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

/* ---- reports ---- */

int netless_channel(int channel[2])
{
    channel[0] = channel[1] = -1;
    errno = EIO;                /* should it say that there are two and give none */
    if (syscall(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel) < 0)
        return -1;
    channel[0] = netless_above_stdio(channel[0]);
    int error = errno;
    channel[1] = netless_above_stdio(channel[1]);
    if (channel[0] >= 0 && channel[1] >= 0)
        return 0;
    error = channel[0] < 0 ? error : errno;
    for (int i = 0; i < 2; i++) {
        if (channel[i] >= 0)
            close(channel[i]);
        channel[i] = -1;
    }
    errno = error;
    return -1;
}

/* Not send and recv, which some sandboxes refuse for every socket, and which are socketcall
   to some libcs.  A peer that is gone is EPIPE without a signal: only streams send SIGPIPE
   (unix(7), net/unix/af_unix.c). */
ssize_t netless_send(int channel, const struct netless_report *report)
{
    ssize_t size;
    do {
        size = write(channel, report, sizeof *report);
    } while (size < 0 && errno == EINTR);
    if (size < 0 || size == sizeof *report)
        return size;
    errno = EIO;
    return -1;
}

ssize_t netless_receive(int channel, struct netless_report *report)
{
    ssize_t size;
    do {
        size = read(channel, report, sizeof *report);
    } while (size < 0 && errno == EINTR);
    if (size <= 0 || size == sizeof *report)
        return size;
    errno = EIO;
    return -1;
}

/* A message, where the end of messages means that the other side has died. */
static int receive(int channel, struct netless_report *report)
{
    ssize_t size = netless_receive(channel, report);
    if (size >= 0 && size != (ssize_t)sizeof *report) {
        errno = EPIPE;
        return -1;
    }
    return size < 0 ? -1 : 0;
}

/* ---- the side that goes in ---- */

/* /proc may belong to another pid namespace: the pid it knows this process by. */
static int pid_in_proc(void)
{
    char text[16];
    ssize_t length = readlink("/proc/self", text, sizeof text - 1);
    if (length < 0)
        return -1;
    text[length] = '\0';
    return netless_number(text);
}

static int retrying_unshare(int flags)
{
    /* EINVAL while other processes that share our memory are still exiting */
    for (int attempt = 0; attempt < 20; attempt++) {
        if (unshare(flags) == 0)
            return 0;
        if (errno != EINVAL)
            return -1;
        sched_yield();
    }
    return -1;
}

/* Makes both namespaces in one call, tells the other side, waits for its maps. */
static int go_in(int channel, struct netless_report *report)
{
    struct netless_report answer;

    NETLESS_TRY(report, NETLESS_STEP_UNSHARE, retrying_unshare(CLONE_NEWUSER | CLONE_NEWNET));
    NETLESS_TRY(report, NETLESS_STEP_PROC, report->proc_pid = pid_in_proc());
    report->network_id = netless_own_network_id();
    NETLESS_TRY(report, NETLESS_STEP_CHANNEL, netless_send(channel, report));
    NETLESS_TRY(report, NETLESS_STEP_CHANNEL, receive(channel, &answer));
    if (answer.step == NETLESS_STEP_NONE)
        return 0;
    report->step = answer.step;
    report->error = answer.error;
    return -1;
}

/* ---- the side that stays out and writes the maps ---- */

static int write_file(int proc_pid, const char *name, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", proc_pid, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t length = strlen(text);
    ssize_t written = write(fd, text, length);
    int error = written >= 0 ? EIO : errno;
    close(fd);
    errno = error;
    return written == (ssize_t)length ? 0 : -1;
}

/* A whole file of /proc as text; -1 where it does not fit. */
static int read_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t length = read(fd, text, size);
    int error = length == (ssize_t)size ? E2BIG : errno;
    close(fd);
    errno = error;
    if (length < 0 || length == (ssize_t)size)
        return -1;
    text[length] = '\0';
    return 0;
}

/* Every id that this process can name, mapped to itself. */
static int whole_map_text(const char *path, char *text, size_t size)
{
    char own[MAP_TEXT_SIZE], *end = own;
    size_t used = 0;

    if (read_file(path, own, sizeof own) < 0)
        return -1;
    while (used < size) {
        unsigned long inside = strtoul(end, &end, 10);
        strtoul(end, &end, 10);         /* where that is outside */
        unsigned long count = strtoul(end, &end, 10);
        if (count == 0)
            break;
        used += (size_t)snprintf(text + used, size - used, "%lu %lu %lu\n", inside, inside, count);
    }
    if (used > 0 && used < size)
        return 0;
    errno = EPERM;
    return -1;
}

/* Is any capability of the set effective? */
int netless_has_capability(uint64_t any_of)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];

    memset(data, 0, sizeof data);
    if (syscall(SYS_capget, &header, data) < 0)
        return 0;
    return ((data[0].effective | (uint64_t)data[1].effective << 32) & any_of) != 0;
}

static int write_whole(int pid, const char *own, const char *name)
{
    char text[MAP_TEXT_SIZE];
    if (whole_map_text(own, text, sizeof text) < 0)
        return -1;
    return write_file(pid, name, text);
}

static int write_one(int pid, const char *name, unsigned int inside, unsigned int outside)
{
    char text[64];
    snprintf(text, sizeof text, "%u %u 1\n", inside, outside);
    return write_file(pid, name, text);
}

/* The whole range for a caller that may (then subprocess's user=, group= and
   extra_groups= work inside), else its own id alone; map_root: as 0.  A failure
   that is no refusal ends it: the kept namespace would be lesser for good. */
static int write_maps(int pid, int map_root, int *whole, struct netless_report *report)
{
    unsigned int uid = geteuid(), gid = getegid();

    int may = (!map_root || uid == 0) &&
              netless_has_capability(1 << CAP_SETUID) && netless_has_capability(1 << CAP_SETGID);
    *whole = may && write_whole(pid, "/proc/self/uid_map", "uid_map") == 0;
    if (*whole && write_whole(pid, "/proc/self/gid_map", "gid_map") == 0)
        return 0;
    if (may && errno != EPERM)
        return netless_fail(report, *whole ? NETLESS_STEP_GID_MAP : NETLESS_STEP_UID_MAP);
    if (!*whole)
        NETLESS_TRY(report, NETLESS_STEP_UID_MAP, write_one(pid, "uid_map", map_root ? 0 : uid, uid));
    *whole = 0;
    NETLESS_TRY(report, NETLESS_STEP_SETGROUPS, write_file(pid, "setgroups", "deny"));
    NETLESS_TRY(report, NETLESS_STEP_GID_MAP, write_one(pid, "gid_map", map_root ? 0 : gid, gid));
    return 0;
}

/* The counterpart of go_in: 0 when the process at the other end is inside and mapped. */
static int settle_maps(int channel, int map_root, int *whole, struct netless_report *report)
{
    NETLESS_TRY(report, NETLESS_STEP_CHANNEL, receive(channel, report));
    if (report->step != NETLESS_STEP_NONE)
        return -1;
    int result = write_maps(report->proc_pid, map_root, whole, report);
    NETLESS_TRY(report, NETLESS_STEP_CHANNEL, netless_send(channel, report));
    return result;
}

/* ---- the shared namespace ---- */

/* A process that only makes the namespaces and lives until they are opened. */
static int maker(void *argument)
{
    struct netless_launch *self = argument;
    struct netless_report *report = &self->request->report;

    netless_close_others_channels(self);
    netless_close_channel(self, 0);
    prctl(PR_SET_DUMPABLE, 1);  /* a copy of a non-dumpable parent has unwritable maps */
    if (go_in(self->channel[1], report) < 0)
        netless_send(self->channel[1], report);
    else
        receive(self->channel[1], report);
    _exit(0);
}

static int open_namespace(int pid, const char *name, struct netless_identity *identity)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, name);
    int fd = netless_above_stdio(open(path, O_RDONLY | O_CLOEXEC));
    if (fd >= 0 && netless_identify(fd, identity) == 0)
        return fd;
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return -1;
}

/* A sealed namespace that is the caller's own network would be no seal at all. Where
   its handles are refused (EACCES: AppArmor without attach_disconnected) there are none,
   and what is left to children is to make their own. `id`: what its maker says it is. */
static int open_both(int pid, uint64_t id, struct netless_namespace *made,
                     struct netless_report *report)
{
    struct netless_identity own;

    NETLESS_TRY(report, NETLESS_STEP_OPEN_NAMESPACE, netless_own_network(&own));
    made->user_fd = open_namespace(pid, "user", &made->user);
    if (made->user_fd < 0 && errno == EACCES)
        return 0;
    NETLESS_TRY(report, NETLESS_STEP_OPEN_NAMESPACE, made->user_fd);
    made->net_fd = open_namespace(pid, "net", &made->net);
    made->net.id = id != 0 ? id : netless_handle_id(made->net_fd);
    if (made->net_fd >= 0 && made->net.inode != own.inode &&
        (made->net.id == 0 || made->net.id != own.id))
        return 0;
    int error = made->net_fd >= 0 ? EEXIST : errno;
    close(made->user_fd);
    if (made->net_fd >= 0)
        close(made->net_fd);
    made->user_fd = made->net_fd = -1;
    errno = error;
    return netless_fail(report, error == EEXIST ? NETLESS_STEP_VERIFY_NET
                                                : NETLESS_STEP_OPEN_NAMESPACE);
}

static struct netless_namespace nothing_made(void)
{
    return (struct netless_namespace){.user_fd = -1, .net_fd = -1, .euid = geteuid(),
                                      .egid = getegid()};
}

int netless_namespace_make(int map_root, struct netless_namespace *made,
                           struct netless_report *report)
{
    struct netless_request request = {.probe = 1};
    struct netless_launch self = {.request = &request, .channel = {-1, -1}};
    sigset_t before;
    int result = -1;

    *made = nothing_made();
    if (netless_open_channel(&self) < 0) {
        *report = request.report;
        return -1;
    }
    netless_block_signals(&before);
    netless_before_fork();
    pid_t pid = clone_process(maker, &self, 0);     /* no SIGCHLD: nobody else reaps it */
    if (pid < 0)
        netless_fail(report, NETLESS_STEP_CLONE);
    netless_after_fork(pid);
    netless_restore_signals(&before);
    netless_close_channel(&self, 1);
    if (pid > 0) {
        result = settle_maps(self.channel[0], map_root, &made->whole_map, report);
        if (result == 0)
            result = open_both(report->proc_pid, report->network_id, made, report);
        kill(pid, SIGKILL);     /* it may not hear of its channel's end, if others keep that open */
        netless_reap(pid);
    }
    netless_close_channel(&self, 0);
    return result;
}

/* Nobody speaks to it, and all its signals are blocked: it ends with its maker at the latest. */
static int holder(void *maker_pid)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == *(const pid_t *)maker_pid)
        syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
    _exit(0);
}

/* The holder comes into being inside new namespaces, and shares this process's
   memory: no copy of it, and nothing to wait for but the holder's end. */
int netless_namespace_make_alone(int map_root, struct netless_namespace *made,
                                 struct netless_report *report)
{
    _Alignas(16) char stack[HOLDER_STACK_SIZE];
    sigset_t before;
    int result = -1;

    *made = nothing_made();
    if (pid_in_proc() == getpid()) {
        netless_block_signals(&before);
        pid_t self = getpid();
        pid_t pid = clone(holder, stack + sizeof stack, CLONE_VM | CLONE_NEWUSER | CLONE_NEWNET,
                          &self);
        netless_restore_signals(&before);
        if (pid > 0) {
            if (write_maps(pid, map_root, &made->whole_map, report) == 0)
                result = open_both(pid, 0, made, report);
            kill(pid, SIGKILL);
            netless_reap(pid);
        }
    }
    if (result == 0)
        return 0;
    *report = (struct netless_report){.step = NETLESS_STEP_NONE};
    return netless_namespace_make(map_root, made, report);
}

void netless_namespace_close(struct netless_namespace *sealed)
{
    if (sealed->user_fd >= 0 && netless_is_still(sealed->user_fd, &sealed->user))
        close(sealed->user_fd);
    if (sealed->net_fd >= 0 && netless_is_still(sealed->net_fd, &sealed->net))
        close(sealed->net_fd);
    sealed->user_fd = sealed->net_fd = -1;
}

/* ---- the child's first steps ---- */

/* The kernel adds 127.0.0.1 and ::1 by itself when lo comes up. */
static int raise_loopback(void)
{
    struct ifreq request = {.ifr_name = "lo"};
    int fd = netless_control_socket();
    if (fd < 0)
        return -1;
    int result = ioctl(fd, SIOCGIFFLAGS, &request);
    if (result == 0) {
        request.ifr_flags |= IFF_UP;
        result = ioctl(fd, SIOCSIFFLAGS, &request);
    }
    int error = errno;
    close(fd);
    errno = error;
    return result;
}

static int join(const struct netless_namespace *sealed, struct netless_report *report)
{
    NETLESS_TRY(report, NETLESS_STEP_SETNS_USER, setns(sealed->user_fd, CLONE_NEWUSER));
    NETLESS_TRY(report, NETLESS_STEP_SETNS_NET, setns(sealed->net_fd, CLONE_NEWNET));
    if (netless_verify_network(&sealed->net, NULL, report) < 0)
        return -1;
    return netless_verify_user(sealed->net_fd, report);
}

/* By way of the kept network namespace: what is proved of that is true of the user namespace. */
static int join_private(const struct netless_namespace *sealed, struct netless_report *report)
{
    if (join(sealed, report) < 0)
        return -1;
    NETLESS_TRY(report, NETLESS_STEP_UNSHARE_NET, unshare(CLONE_NEWNET));
    return netless_verify_network(NULL, &sealed->net, report);
}

/* One system call makes both namespaces, so the one is proved by the other. */
static int make(int channel, struct netless_report *report)
{
    struct netless_identity outside;

    NETLESS_TRY(report, NETLESS_STEP_VERIFY_NET, netless_own_network(&outside));
    if (go_in(channel, report) < 0)
        return -1;
    return netless_verify_network(NULL, &outside, report);
}

static int enter(struct netless_launch *launch)
{
    const struct netless_plan *plan = launch->plan;
    struct netless_report *report = &launch->request->report;
    int result = 0;

    if (plan->way == NETLESS_WAY_JOIN)
        result = join(&plan->sealed, report);
    else if (plan->way == NETLESS_WAY_JOIN_PRIVATE)
        result = join_private(&plan->sealed, report);
    else if (plan->way == NETLESS_WAY_MAKE)
        result = make(launch->channel[1], report);
    if (result == 0 && plan->loopback)
        NETLESS_TRY(report, NETLESS_STEP_LOOPBACK, raise_loopback());
    return result;
}

int netless_isolate_child(struct netless_launch *launch, struct netless_powers *before)
{
    netless_read_powers(launch->plan, before);
    if (enter(launch) < 0)
        return -1;
    return netless_seal(launch->plan, before, launch->request->probe, &launch->request->report);
}

int netless_meet_child(struct netless_launch *launch, pid_t pid)
{
    const struct netless_plan *plan = launch->plan;
    int whole;

    (void)pid;
    if (plan->way != NETLESS_WAY_MAKE ||
        settle_maps(launch->channel[0], plan->map_root, &whole, &launch->request->report) == 0)
        return 0;
    netless_close_channel(launch, 0);
    return -1;
}

/* ---- the calling process makes namespaces of its own ---- */

struct helper {
    int channel[2];
    int map_root;
};

static int helper(void *argument)
{
    struct helper *self = argument;
    struct netless_report report = {.step = NETLESS_STEP_NONE};
    int whole;

    close(self->channel[1]);
    settle_maps(self->channel[0], self->map_root, &whole, &report);
    _exit(0);
}

static int make_alone(const struct netless_plan *plan, struct netless_report *report)
{
    struct helper outside = {.channel = {-1, -1}, .map_root = plan->map_root};
    struct netless_request request = {.probe = 0};
    struct netless_launch launch = {.plan = plan, .request = &request};
    sigset_t before;

    NETLESS_TRY(report, NETLESS_STEP_CHANNEL, netless_channel(outside.channel));
    netless_block_signals(&before);
    pid_t pid = clone_process(helper, &outside, 0);
    if (pid < 0)
        netless_fail(report, NETLESS_STEP_CLONE);
    netless_restore_signals(&before);
    close(outside.channel[0]);
    launch.channel[1] = outside.channel[1];
    int result = pid < 0 ? -1 : enter(&launch);
    if (result < 0 && pid > 0)
        *report = request.report;
    close(outside.channel[1]);
    if (pid > 0)
        netless_reap(pid);
    return result;
}

int netless_isolate(const struct netless_plan *plan, struct netless_report *report)
{
    struct netless_request request = {.probe = 0};
    struct netless_launch launch = {.plan = plan, .request = &request, .channel = {-1, -1}};
    struct netless_powers before;

    netless_read_powers(plan, &before);
    int result = plan->way == NETLESS_WAY_MAKE ? make_alone(plan, &request.report)
                                               : enter(&launch);
    if (result == 0)
        result = netless_seal(plan, &before, 0, &request.report);
    if (result == 0 && netless_drop_capabilities(&before) < 0)
        result = netless_fail(&request.report, NETLESS_STEP_CAPABILITIES);
    *report = request.report;
    return result;
}

/* ---- what can be done from here, tried in a child ---- */

struct trial {
    int flags;
    int wants_mount;
    int error;
};

static int trier(void *argument)
{
    struct trial *trial = argument;

    if (unshare(trial->flags) < 0)
        trial->error = errno;
    else if (trial->wants_mount && mount(NULL, "/", NULL, MS_PRIVATE, NULL) < 0)
        trial->error = errno;
    else
        trial->error = 0;
    _exit(0);
}

/* The errno of the first that is refused; EINTR when the child was killed. */
static int try_in_child(int flags, int wants_mount)
{
    struct trial trial = {.flags = flags, .wants_mount = wants_mount, .error = EINTR};
    sigset_t before;

    netless_block_signals(&before);
    pid_t pid = clone_process(trier, &trial, CLONE_VM | CLONE_VFORK);
    int error = errno;
    netless_restore_signals(&before);
    if (pid < 0)
        return error;
    netless_reap(pid);
    return trial.error;
}

int netless_try_unshare(int flags)
{
    return try_in_child(flags, 0);
}

/* Who is in a file domain has no_new_privs, or had CAP_SYS_ADMIN when entering it.  Who has
   that still is told by a mount without a type: EPERM by the domain, before EINVAL. */
int netless_is_mount_refused(int without_child)
{
    if (without_child && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
        return netless_has_capability((uint64_t)1 << CAP_SYS_ADMIN) &&
               mount("none", "/", NULL, 0, NULL) < 0 && errno == EPERM;
    int error = try_in_child(CLONE_NEWUSER | CLONE_NEWNS, 1);
    return error == EPERM || error == EACCES || error == ENOSYS;
}
