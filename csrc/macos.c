/*
 * macOS: a child by fork, isolated by sandbox_init with a profile that denies
 * every network operation.
 *
 * sandbox_init compiles the profile and so allocates, which is not documented
 * to be safe in the child of a process with threads.  Everything else is made
 * before the fork, and the parent waits for this step only so long.
 */
#include "spawn.h"

#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

/* From libSystem; sandbox.h is not in every SDK. */
int sandbox_init(const char *profile, uint64_t flags, char **error);
void sandbox_free_error(char *error);
char ***_NSGetEnviron(void);

const char *netless_mechanism(void)
{
    return "seatbelt";
}

/* Nothing is kept that could become stale. */
int netless_is_callers(const struct netless_plan *plan)
{
    return netless_is_fresh(plan);
}

int netless_is_fresh(const struct netless_plan *plan)
{
    (void)plan;
    return 1;
}

/* ---- processes ---- */

/* Held while a channel is open that would survive an execve, and by fork: else
   another thread's child could inherit it, and its end would never be seen. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void take_lock(void)
{
    pthread_mutex_lock(&lock);
}

static void release_lock(void)
{
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void lock_forks(void)
{
    pthread_atfork(take_lock, release_lock, release_lock);
}

enum netless_memory netless_memory_of(const struct netless_launch *launch)
{
    (void)launch;
    return NETLESS_MEMORY_OWN;
}

pid_t netless_start(int (*function)(void *), struct netless_launch *launch)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(function(launch));
    return pid;
}

int netless_reap(pid_t pid)
{
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return status;
}

/* sigprocmask would change every thread of the process here. */
int netless_set_mask(const sigset_t *mask, sigset_t *before)
{
    int error = pthread_sigmask(SIG_SETMASK, mask, before);
    if (error == 0)
        return 0;
    errno = error;
    return -1;
}

char **netless_environ(void)
{
    return *_NSGetEnviron();
}

int netless_take_ids(const struct netless_request *request, struct netless_report *report)
{
    if (request->has_groups)
        NETLESS_TRY(report, NETLESS_STEP_GROUPS,
                    setgroups(request->group_count, (const gid_t *)request->groups));
    if (request->has_gid)
        NETLESS_TRY(report, NETLESS_STEP_GID, setregid(request->gid, request->gid));
    if (request->has_uid)
        NETLESS_TRY(report, NETLESS_STEP_UID, setreuid(request->uid, request->uid));
    return 0;
}

/* ---- reports: over a pipe, which no rule of the profile can touch ---- */

/* PIPE_BUF: up to here a write is whole or not at all. */
_Static_assert(sizeof(struct netless_report) <= 512, "a report is one write");

static int close_on_exec(int fd)
{
    return fcntl(fd, F_SETFD, FD_CLOEXEC);
}

int netless_channel(int channel[2])
{
    take_lock();
    int result = pipe(channel);
    for (int i = 0; result == 0 && i < 2; i++)
        result = close_on_exec(channel[i]);
    for (int i = 0; result == 0 && i < 2; i++)
        result = (channel[i] = netless_above_stdio(channel[i])) < 0 ? -1 : 0;
    int error = errno;
    release_lock();
    for (int i = 0; result < 0 && i < 2; i++) {
        if (channel[i] >= 0)
            close(channel[i]);
        channel[i] = -1;
    }
    errno = error;
    return result;
}

/* All signals are blocked here, or back to what execve would leave. */
ssize_t netless_send(int channel, const struct netless_report *report)
{
    ssize_t size;
    do {
        size = write(channel, report, sizeof *report);
    } while (size < 0 && errno == EINTR);
    return size;
}

/* The end of the pipe leaves the report as it is. */
ssize_t netless_receive(int channel, struct netless_report *report)
{
    struct netless_report found;
    size_t size = 0;

    while (size < sizeof found) {
        ssize_t more = read(channel, (char *)&found + size, sizeof found - size);
        if (more < 0 && errno != EINTR)
            return -1;
        if (more == 0)
            return 0;
        size += more > 0 ? (size_t)more : 0;
    }
    *report = found;
    return (ssize_t)size;
}

/* ---- isolation ---- */

/* sandbox_init does not promise to set errno. */
static int enter(const struct netless_plan *plan, struct netless_report *report)
{
    char *text = NULL;

    errno = 0;
    if (sandbox_init(plan->profile, 0, &text) == 0)
        return 0;
    int error = errno != 0 ? errno : EINVAL;
    if (text != NULL) {
        strncpy(report->detail, text, sizeof report->detail - 1);
        sandbox_free_error(text);
    }
    errno = error;
    return -1;
}

/* The proof: pointing a datagram socket at this host sends nothing, and is
   allowed everywhere but in here. */
static int verify(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(9)};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);

    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    int result = fd < 0 ? -1 : connect(fd, (struct sockaddr *)&here, sizeof here);
    int error = result == 0 ? EEXIST : errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return result < 0 && (error == EPERM || error == EACCES) ? 0 : -1;
}

static int isolate(const struct netless_plan *plan, struct netless_report *report)
{
    NETLESS_TRY(report, NETLESS_STEP_SANDBOX_INIT, enter(plan, report));
    NETLESS_TRY(report, NETLESS_STEP_VERIFY_NET, verify());
    return 0;
}

int netless_isolate_child(struct netless_launch *launch, struct netless_powers *before)
{
    struct netless_report *report = &launch->request->report;

    (void)before;
    if (isolate(launch->plan, report) < 0)
        return -1;
    NETLESS_TRY(report, NETLESS_STEP_CHANNEL, netless_send(launch->channel[1], report));
    return 0;
}

int netless_isolate(const struct netless_plan *plan, struct netless_report *report)
{
    memset(report, 0, sizeof *report);
    return isolate(plan, report);
}

/* There are none. */
int netless_drop_capabilities(const struct netless_powers *before)
{
    (void)before;
    return 0;
}

static int64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* 1 when there is something to read, 0 when there was not in time. */
static int wait_for(int fd, int time_limit)
{
    struct pollfd wanted = {.fd = fd, .events = POLLIN};
    int64_t end = milliseconds() + time_limit, left;

    while ((left = end - milliseconds()) > 0) {
        int found = poll(&wanted, 1, (int)left);
        if (found > 0 || (found < 0 && errno != EINTR))
            return found;
    }
    errno = ETIMEDOUT;
    return 0;
}

/* The child's first report says that it is isolated; what comes after that, a
   program on a slow disk or preexec_fn, may take as long as it takes. */
int netless_meet_child(struct netless_launch *launch, pid_t pid)
{
    struct netless_report *report = &launch->request->report;
    int channel = launch->channel[0];

    if (wait_for(channel, launch->plan->time_limit) <= 0) {
        netless_fail(report, NETLESS_STEP_SANDBOX_INIT);
        kill(pid, SIGKILL);
        return -1;
    }
    ssize_t size = netless_receive(channel, report);
    if (size > 0)
        return report->step == NETLESS_STEP_NONE ? 0 : -1;
    errno = size == 0 ? EPIPE : errno;  /* the child has died */
    netless_fail(report, NETLESS_STEP_CHANNEL);
    kill(pid, SIGKILL);
    return -1;
}

/* ---- descriptors ---- */

/* A socket that does not tell its address is of no family that is known to be harmless. */
static int classify_socket(int fd, int unix_sockets, int *family)
{
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    socklen_t size = sizeof address;
    int type = -1;

    if (getsockname(fd, (struct sockaddr *)&address, &size) == 0)
        *family = address.ss_family;
    if (*family != AF_UNIX)
        return NETLESS_KIND_SOCKET;
    if (unix_sockets)
        return NETLESS_KIND_FINE;
    size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0 || type != SOCK_STREAM)
        return NETLESS_KIND_SOCKET;
    size = sizeof address;
    return getpeername(fd, (struct sockaddr *)&address, &size) < 0 ? NETLESS_KIND_SOCKET
                                                                   : NETLESS_KIND_FINE;
}

/* Terminals and the usual sources and sinks; not bpf, which reaches the wire. */
static int classify_device(int fd, dev_t number)
{
    static const char *const harmless[] = {"/dev/null", "/dev/zero", "/dev/random",
                                           "/dev/urandom"};
    struct termios terminal;
    struct stat known;

    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (stat(harmless[i], &known) == 0 && S_ISCHR(known.st_mode) && known.st_rdev == number)
            return NETLESS_KIND_FINE;
    return tcgetattr(fd, &terminal) == 0 ? NETLESS_KIND_FINE : NETLESS_KIND_DEVICE;
}

/* What fstat does not know (necp, fsevents, ...) is refused. */
int netless_classify(int fd, int unix_sockets, int *family)
{
    struct stat found;

    *family = -1;
    if (fstat(fd, &found) < 0)
        return NETLESS_KIND_UNKNOWN;
    switch (found.st_mode & S_IFMT) {
    case S_IFSOCK:
        return classify_socket(fd, unix_sockets, family);
    case S_IFCHR:
        return classify_device(fd, found.st_rdev);
    case S_IFIFO:                       /* kqueues as well */
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
    case 0:                             /* shared memory */
        return NETLESS_KIND_FINE;
    default:
        return NETLESS_KIND_UNKNOWN;
    }
}

/* What /dev/fd lists. opendir allocates, as sandbox_init has done before. */
int netless_each_descriptor(struct netless_launch *launch,
                            int (*visit)(struct netless_launch *launch, int fd))
{
    DIR *directory = opendir("/dev/fd");
    struct dirent *entry;
    int result = 0;

    if (directory == NULL)
        return -1;
    while (result == 0 && (errno = 0, entry = readdir(directory)) != NULL) {
        int fd = netless_number(entry->d_name);
        if (fd > 2 && fd != dirfd(directory))
            result = visit(launch, fd);
    }
    int error = errno;
    closedir(directory);
    errno = error;
    return result < 0 || error != 0 ? -1 : result;
}

/* There is no such system call here. */
int netless_close_ranges(const struct netless_launch *launch)
{
    (void)launch;
    errno = ENOSYS;
    return -1;
}
