/*
 * Descriptors on Linux: which kinds are known to be harmless, which are open,
 * and how to close them.
 */
#define _GNU_SOURCE
#if __SIZEOF_POINTER__ == 4
#define _FILE_OFFSET_BITS 64     /* file systems of any size; elsewhere it would want fcntl64, glibc 2.28 */
#endif
#include "spawn.h"

#include <errno.h>
#include <linux/stat.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436     /* on every architecture, since Linux 5.9 */
#endif

/* linux/magic.h has these only in newer headers. */
#define PROC_MAGIC 0x9fa0
#define NSFS_MAGIC 0x6e736673
#define PIDFS_MAGIC 0x50494446

/* linux/major.h, and the minors of drivers/char/mem.c and tty_io.c */
enum { MEMORY_MAJOR = 1, TTY_AUX_MAJOR = 5, PTS_FIRST = 136, PTS_LAST = 143 };

void netless_number_text(char *end, int number)
{
    char digits[12];
    int count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    while (count > 0)
        *end++ = digits[--count];
    *end = '\0';
}

/* What /proc/self/fd says the descriptor is; empty when it says nothing. */
static void describe(int fd, char *name, size_t size)
{
    char path[32] = "/proc/self/fd/";
    netless_number_text(path + strlen(path), fd);
    ssize_t length = readlink(path, name, size - 1);
    name[length > 0 ? length : 0] = '\0';
}

static int ends_with(const char *text, const char *ending)
{
    size_t length = strlen(text), tail = strlen(ending);
    return length >= tail && strcmp(text + length - tail, ending) == 0;
}

/* System calls of their own: libc's may be socketcall, which the filter refuses. */
static int socket_option(int fd, int option)
{
    int value = -1;
    socklen_t size = sizeof value;
    return syscall(SYS_getsockopt, fd, SOL_SOCKET, option, &value, &size) < 0 ? -1 : value;
}

/* What is known of a socket where a filter refuses getsockopt: sockets have the name of
   their protocol as an extended attribute, and AF_UNIX's begin with "UNIX" (net/socket.c). */
static int is_unix_by_name(int fd)
{
    char name[32];
    long length = syscall(SYS_fgetxattr, fd, "system.sockprotoname", name, sizeof name);
    return length >= 4 && memcmp(name, "UNIX", 4) == 0;
}

/* Streams that are already connected stay where they lead; any other AF_UNIX
   socket can still be pointed at a path. */
static int classify_socket(int fd, int unix_sockets, int *family)
{
    struct sockaddr_storage peer = {.ss_family = AF_UNSPEC};
    socklen_t size = sizeof peer;

    *family = socket_option(fd, SO_DOMAIN);
    if (*family < 0 && is_unix_by_name(fd))
        *family = AF_UNIX;
    if (*family != AF_UNIX)
        return NETLESS_KIND_SOCKET;
    if (unix_sockets)
        return NETLESS_KIND_FINE;
    int type = socket_option(fd, SO_TYPE);
    if (type != SOCK_STREAM && type != SOCK_SEQPACKET)
        return NETLESS_KIND_SOCKET;
    int has_peer = syscall(SYS_getpeername, fd, &peer, &size) == 0 && peer.ss_family == AF_UNIX;
    return has_peer ? NETLESS_KIND_FINE : NETLESS_KIND_SOCKET;
}

/* Whatever driver it has: a serial console, say. */
static int is_terminal(int fd)
{
    char settings[256];         /* struct termios, whichever of its layouts the kernel fills in */
    return ioctl(fd, TCGETS, settings) == 0;
}

static int classify_device(int fd, unsigned int major, unsigned int minor)
{
    switch (major) {
    case MEMORY_MAJOR:          /* null, zero, full, random, urandom */
        return minor == 3 || minor == 5 || (minor >= 7 && minor <= 9) ? NETLESS_KIND_FINE
                                                                     : NETLESS_KIND_DEVICE;
    case TTY_AUX_MAJOR:         /* tty, console, ptmx */
        return minor <= 2 ? NETLESS_KIND_FINE : NETLESS_KIND_DEVICE;
    default:
        return (major >= PTS_FIRST && major <= PTS_LAST) || is_terminal(fd) ? NETLESS_KIND_FINE
                                                                            : NETLESS_KIND_DEVICE;
    }
}

/* A file of /proc is fine to read where everybody may.  What only its owner may read is
   the memory of a process, or of the kernel; names do not tell, since a file of /proc can be
   mounted under any other. */
static int classify_proc_file(int fd, unsigned int mode)
{
    int flags = fcntl(fd, F_GETFL);
    int only_reads = flags >= 0 && !(flags & O_PATH) && (flags & O_ACCMODE) == O_RDONLY;

    return only_reads && mode & S_IROTH ? NETLESS_KIND_FINE : NETLESS_KIND_PROC;
}

static int classify_file(int fd, unsigned int mode)
{
    struct statfs system;

    memset(&system, 0, sizeof system);
    if (fstatfs(fd, &system) < 0)
        return NETLESS_KIND_UNKNOWN;
    switch ((unsigned long)system.f_type) {
    case 0:                     /* none has that: the call said yes and did nothing */
        return NETLESS_KIND_UNKNOWN;
    case NSFS_MAGIC:
        return NETLESS_KIND_NAMESPACE;
    case PIDFS_MAGIC:
        return NETLESS_KIND_PIDFD;
    case PROC_MAGIC:
        return (mode & S_IFMT) == S_IFDIR ? NETLESS_KIND_PROC : classify_proc_file(fd, mode);
    default:
        return NETLESS_KIND_FINE;
    }
}

/* Files without an inode of their own: few of them are harmless. */
static int classify_anonymous(int fd)
{
    static const char *const harmless[] = {
        "anon_inode:[eventfd]", "anon_inode:[timerfd]", "anon_inode:[eventpoll]",
        "anon_inode:[signalfd]", "anon_inode:inotify",
    };
    char name[64];

    describe(fd, name, sizeof name);
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strcmp(name, harmless[i]) == 0)
            return NETLESS_KIND_FINE;
    return ends_with(name, "[pidfd]") ? NETLESS_KIND_PIDFD : NETLESS_KIND_ANONYMOUS;
}

int netless_classify(int fd, int unix_sockets, int *family)
{
    struct statx found;

    *family = -1;
    memset(&found, 0, sizeof found);
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_MODE, &found) < 0)
        return errno == EBADF ? NETLESS_KIND_FINE : NETLESS_KIND_UNKNOWN;
    if (!(found.stx_mask & STATX_TYPE))
        return NETLESS_KIND_UNKNOWN;
    switch (found.stx_mode & S_IFMT) {
    case S_IFIFO:
        return NETLESS_KIND_FINE;
    case S_IFSOCK:
        return classify_socket(fd, unix_sockets, family);
    case S_IFCHR:
        return classify_device(fd, found.stx_rdev_major, found.stx_rdev_minor);
    case S_IFREG:
    case S_IFDIR:
        return classify_file(fd, found.stx_mode);
    case 0:
        return classify_anonymous(fd);
    default:                    /* block devices may be network block devices */
        return NETLESS_KIND_UNKNOWN;
    }
}

/* What /proc/self/fd lists. */
int netless_each_descriptor(struct netless_launch *launch,
                            int (*visit)(struct netless_launch *launch, int fd))
{
    struct entry {              /* struct linux_dirent64 */
        uint64_t inode;
        int64_t offset;
        unsigned short length;
        unsigned char type;
        char name[];
    };
    _Alignas(struct entry) char buffer[2048];
    int directory = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = 0, lists_itself = 0;
    long size = 0;

    if (directory < 0)
        return -1;
    while (result == 0 &&
           (size = syscall(SYS_getdents64, directory, buffer, sizeof buffer)) > 0) {
        for (long at = 0; result == 0 && at < size;) {
            const struct entry *entry = (const struct entry *)(buffer + at);
            int fd = netless_number(entry->name);
            lists_itself |= fd == directory;
            if (fd > 2 && fd != directory)
                result = visit(launch, fd);
            at += entry->length;
        }
    }
    close(directory);
    if (result == 0 && size == 0 && !lists_itself) {
        errno = EIO;            /* a list of nothing is none */
        return -1;
    }
    return size < 0 ? -1 : result;
}

/* ---- closing ---- */

/* Was it closed, or only said to be? The handle by which this child came in tells. */
static int is_closed(const struct netless_launch *launch)
{
    const struct netless_plan *plan = launch->plan;
    int is_joining = plan->way == NETLESS_WAY_JOIN || plan->way == NETLESS_WAY_JOIN_PRIVATE;

    for (int i = 0; i < launch->keep_count; i++)
        if (launch->keep[i] == plan->sealed.net_fd)
            return 1;
    return !is_joining || fcntl(plan->sealed.net_fd, F_GETFD) < 0;
}

int netless_close_ranges(const struct netless_launch *launch)
{
    unsigned int first = 3;

    for (int i = 0; i < launch->keep_count; i++) {
        unsigned int kept = (unsigned int)launch->keep[i];
        if (kept > first && syscall(SYS_close_range, first, kept - 1, 0) < 0)
            return -1;
        if (kept >= first)
            first = kept + 1;
    }
    if (syscall(SYS_close_range, first, ~0U, 0) < 0)
        return -1;
    return is_closed(launch) ? 0 : -1;
}
