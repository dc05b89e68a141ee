/*
 * The proofs: where a process is, asked of the kernel and not of a name.
 *
 * Inode numbers are given out again as soon as a namespace is gone, so they prove
 * nothing by themselves.  A network namespace has an id that is never used twice:
 *
 *   SO_NETNS_COOKIE   Linux 5.14, of a socket
 *   NS_GET_ID         Linux 6.18, of a handle; the same number.  For callers around
 *                     whom a filter refuses getsockopt
 *   neither           the inode number, and what the namespace holds: nothing but a
 *                     loopback device that is down
 *
 * Everything here is async-signal-safe.
 */
#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/stat.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* linux/nsfs.h, linux/pidfd.h and asm/socket.h have these only in newer headers. */
#define NSFS_GET_USERNS _IO(0xb7, 1)                /* Linux 4.9 */
#define NSFS_GET_PARENT _IO(0xb7, 2)
#define NSFS_GET_ID _IOR(0xb7, 13, uint64_t)        /* Linux 6.18 */
#ifndef SIOCGSKNS
#define SIOCGSKNS 0x894c
#endif
#ifndef PIDFD_GET_NET_NAMESPACE
#define PIDFD_GET_NET_NAMESPACE _IO(0xff, 4)        /* Linux 6.11 */
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434                          /* on every architecture, Linux 5.3 */
#endif
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

/* A socket to ask by. Sandboxes around the caller may refuse any family but AF_UNIX, or just
   that one, or all but a connected pair (unix_sockets=False).  By system calls of its own,
   since libc's may be socketcall, which the filter refuses. */
int netless_control_socket(void)
{
    int pair[2] = {-1, -1};
    int fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        fd = (int)syscall(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 || syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return fd;
    close(pair[1]);
    return pair[0];
}

/* Closes and keeps errno. */
static void close_quietly(int fd)
{
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
}

/* ---- handles ---- */

/* statx by number: fstat would tie the wheel to glibc 2.33.  A handle's inode comes into
   being when it is opened first and ends when it is closed last: the time tells it from
   a later one under the same number. */
int netless_identify(int fd, struct netless_identity *identity)
{
    struct statx found;

    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_INO | STATX_CTIME, &found) < 0)
        return -1;
    identity->device = (uint64_t)found.stx_dev_major << 32 | found.stx_dev_minor;
    identity->inode = found.stx_ino;
    identity->opened = (uint64_t)found.stx_ctime.tv_sec * 1000000000 + found.stx_ctime.tv_nsec;
    return 0;
}

int netless_is_still(int fd, const struct netless_identity *expected)
{
    struct netless_identity found;
    return netless_identify(fd, &found) == 0 && found.device == expected->device &&
           found.inode == expected->inode && found.opened == expected->opened;
}

/* The id of the namespace behind a handle, 0 where this kernel does not tell. */
uint64_t netless_handle_id(int fd)
{
    uint64_t id = 0;
    return ioctl(fd, NSFS_GET_ID, &id) == 0 ? id : 0;
}

/* ---- this process's own network namespace ---- */

/* 0 where it cannot be had. Also by the handle that a socket gives to whoever has
   CAP_NET_ADMIN there, as every child has until execve. */
static uint64_t own_id(enum netless_proof *proof)
{
    int fd = netless_control_socket();
    uint64_t id = 0;
    socklen_t size = sizeof id;

    *proof = NETLESS_PROOF_COOKIE;
    if (fd >= 0 && syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_NETNS_COOKIE, &id, &size) < 0) {
        int handle = ioctl(fd, SIOCGSKNS);
        id = handle < 0 ? 0 : netless_handle_id(handle);
        close_quietly(handle);
        *proof = NETLESS_PROOF_ID;
    }
    close_quietly(fd);
    return id;
}

uint64_t netless_own_network_id(void)
{
    enum netless_proof proof;
    return own_id(&proof);
}

/* From what /proc calls a namespace, "net:[4026531840]". The name can be read where AppArmor
   lets nobody near the file behind it (a "disconnected path"). */
static uint64_t inode_by_name(void)
{
    char name[40];
    ssize_t length = readlink("/proc/self/ns/net", name, sizeof name);
    uint64_t inode = 0;

    for (ssize_t at = 0; at < length; at++)
        if (name[at] >= '0' && name[at] <= '9')
            inode = inode * 10 + (uint64_t)(name[at] - '0');
    if (length >= 0 && inode == 0)
        errno = EINVAL;
    return inode;
}

/* Asked of the kernel by a pidfd, which is cheaper than /proc for a process that is new
   and has one thread; else of /proc. 0 with errno. */
static uint64_t own_inode(void)
{
    struct netless_identity found = {.inode = 0};
    int process = (int)syscall(SYS_pidfd_open, getpid(), 0);
    int network = process < 0 ? -1 : ioctl(process, PIDFD_GET_NET_NAMESPACE, 0);

    if (network >= 0 && netless_identify(network, &found) < 0)
        found.inode = 0;
    close_quietly(network);
    close_quietly(process);
    return found.inode != 0 ? found.inode : inode_by_name();
}

int netless_own_network(struct netless_identity *own)
{
    enum netless_proof proof;

    *own = (struct netless_identity){.id = own_id(&proof)};
    own->inode = own_inode();
    return own->inode != 0 ? 0 : -1;
}

/* ---- what it holds, where there is no id ---- */

/* A network namespace that is new has these, each of them down: the loopback device, and
   on some systems what loaded modules add (net.core.fb_tunnels_only_for_init_net). */
static int is_of_a_new_namespace(const char *name)
{
    static const char *const known[] = {
        "lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0",
        "ip6gre0",
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i]) == 0)
            return 1;
    return 0;
}

/* -1 where it cannot be asked. */
static int is_down(int control, const char *name)
{
    struct ifreq request = {.ifr_flags = IFF_UP};

    memcpy(request.ifr_name, name, strlen(name) + 1);
    return ioctl(control, SIOCGIFFLAGS, &request) < 0 ? -1 : !(request.ifr_flags & IFF_UP);
}

/* /proc/self/net/dev: two lines of headings, then "  NAME: ..." for every device. */
static int holds_nothing_in(const char *text, int control)
{
    int devices = 0;

    for (int heading = 0; heading < 2; heading++) {
        text = strchr(text, '\n');
        if (text++ == NULL)
            return 0;
    }
    while (*text != '\0') {
        const char *end = strchr(text += strspn(text, " "), ':'), *next = strchr(text, '\n');
        char name[IFNAMSIZ];
        if (end == NULL || next == NULL || end > next || end - text >= IFNAMSIZ)
            return 0;
        memcpy(name, text, (size_t)(end - text));
        name[end - text] = '\0';
        int is_harmless = is_of_a_new_namespace(name) ? is_down(control, name) : 0;
        if (is_harmless != 1)
            return is_harmless;
        devices++;
        text = next + 1;
    }
    return devices > 0;
}

/* 1, 0, or -1 with errno where it cannot be looked at. More devices than fit are more than a
   new namespace has. */
static int holds_nothing(void)
{
    char text[3072];
    size_t length = 0;
    ssize_t more = 1;
    int control = netless_control_socket();
    int fd = control < 0 ? -1 : open("/proc/self/net/dev", O_RDONLY | O_CLOEXEC);

    while (fd >= 0 && more > 0 && length < sizeof text - 1) {
        more = read(fd, text + length, sizeof text - 1 - length);
        length += more > 0 ? (size_t)more : 0;
    }
    text[length] = '\0';
    int result = fd < 0 || more < 0 ? -1 : more == 0 && holds_nothing_in(text, control);
    close_quietly(fd);
    close_quietly(control);
    return result;
}

/* ---- the proofs ---- */

static int disproved(struct netless_report *report, enum netless_step step)
{
    errno = EEXIST;
    return netless_fail(report, step);
}

/* A child goes on only from a network namespace that is known to be the `wanted` one, or,
   without that, known not to be the one that it was started in. */
int netless_verify_network(const struct netless_identity *wanted,
                           const struct netless_identity *outside, struct netless_report *report)
{
    const struct netless_identity *known = wanted != NULL ? wanted : outside;
    enum netless_proof proof;
    uint64_t found = own_id(&proof);
    int is_known = found == known->id;

    if (found == 0 || known->id == 0) {
        proof = NETLESS_PROOF_CONTENTS;
        uint64_t inode = own_inode();
        if (inode == 0)
            return netless_fail(report, NETLESS_STEP_VERIFY_NET);
        is_known = inode == known->inode;
    }
    if (is_known != (wanted != NULL))
        return disproved(report, NETLESS_STEP_VERIFY_NET);
    if (proof == NETLESS_PROOF_CONTENTS) {
        int is_empty = holds_nothing();
        NETLESS_TRY(report, NETLESS_STEP_VERIFY_NET, is_empty);
        if (!is_empty)
            return disproved(report, NETLESS_STEP_VERIFY_NET);
    }
    report->proof = (int)proof;
    return 0;
}

/* Of the user namespace that owns the network namespace of a proved handle: from inside,
   its parent is out of reach (EPERM); from outside it can be opened. */
int netless_verify_user(int net_fd, struct netless_report *report)
{
    int owner = ioctl(net_fd, NSFS_GET_USERNS);

    NETLESS_TRY(report, NETLESS_STEP_VERIFY_USER, owner);
    int parent = ioctl(owner, NSFS_GET_PARENT);
    int is_inside = parent < 0 && errno == EPERM;
    close_quietly(parent);
    close_quietly(owner);
    return is_inside ? 0 : disproved(report, NETLESS_STEP_VERIFY_USER);
}
