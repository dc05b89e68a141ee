/*
 * holes NAME [ARG]: exit status 0 when the hole is open, 1 when it is shut (errno on stderr).
 * AF_VSOCK sockets are created and closed, never bound or connected.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/netlink.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static int shut(long value)
{
    if (value >= 0)
        return 0;
    fprintf(stderr, "%d %s\n", errno, strerror(errno));
    return 1;
}

static int vsock(const char *unused)
{
    (void)unused;
    return shut(syscall(SYS_socket, AF_VSOCK, SOCK_STREAM, 0));
}

/* The kernel looks at the low half of the number only. */
static int vsock_high(const char *unused)
{
    (void)unused;
    return shut(syscall(SYS_socket, (long)((uint64_t)1 << 32 | AF_VSOCK), (long)SOCK_STREAM, 0L));
}

/* Any family at all beyond the ones that network namespaces cover. */
static int families(const char *unused)
{
    int open = 0;
    (void)unused;
    for (int family = 0; family < 64; family++) {
        if (family == AF_UNIX || family == AF_INET || family == AF_INET6 || family == AF_NETLINK)
            continue;
        for (int type = 1; type <= 5; type++)
            if (syscall(SYS_socket, family, type, 0) >= 0) {
                fprintf(stderr, "family %d type %d\n", family, type);
                open = 1;
            }
    }
    return !open;
}

#if defined(__x86_64__)
/* A 32-bit system call from a 64-bit program. */
static long int80(long number, long a, long b, long c)
{
    long value;
    __asm__ volatile("int $0x80" : "=a"(value) : "a"(number), "b"(a), "c"(b), "d"(c)
                     : "memory", "r8", "r9", "r10", "r11");
    errno = value < 0 ? (int)-value : 0;
    return value < 0 ? -1 : value;
}

static int int80_vsock(const char *unused)
{
    (void)unused;
    return shut(int80(359 /* socket */, AF_VSOCK, SOCK_STREAM, 0));
}

static int x32_vsock(const char *unused)
{
    (void)unused;
    return shut(syscall(0x40000000 + SYS_socket, AF_VSOCK, SOCK_STREAM, 0));
}
#elif defined(__i386__)
static int socketcall_vsock(const char *unused)
{
    unsigned long arguments[3] = {AF_VSOCK, SOCK_STREAM, 0};
    (void)unused;
    return shut(syscall(SYS_socketcall, 1 /* SYS_SOCKET */, arguments));
}
#endif

/* IORING_OP_SOCKET, submitted and completed. */
static int io_uring_socket(const char *unused)
{
    struct io_uring_params p;
    (void)unused;
    memset(&p, 0, sizeof p);
    int ring = (int)syscall(SYS_io_uring_setup, 4, &p);
    if (ring < 0)
        return shut(-1);
    char *sq = mmap(NULL, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED,
                    ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe),
                    PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *sqe = mmap(NULL, p.sq_entries * sizeof *sqe, PROT_READ | PROT_WRITE,
                                    MAP_SHARED, ring, IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || (void *)sqe == MAP_FAILED)
        return shut(-1);
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = 45 /* IORING_OP_SOCKET */;
    sqe->fd = AF_VSOCK;
    sqe->off = SOCK_STREAM;
    *(unsigned *)(sq + p.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
        return shut(-1);
    int result = ((struct io_uring_cqe *)(cq + p.cq_off.cqes))->res;
    errno = result < 0 ? -result : 0;
    return shut(result);
}

/* A key of type "user" that this process adds itself; never another type. */
static int keys(const char *unused)
{
    (void)unused;
    if (syscall(SYS_add_key, "user", "netless:test", "x", 1, -2 /* process keyring */) < 0)
        return shut(-1);
    return shut(syscall(SYS_request_key, "user", "netless:test", NULL, 0));
}

/* Makes the kernel run the helper that the test configured for user keys "netless:upcall:*". */
static int upcall(const char *description)
{
    syscall(SYS_request_key, "user", description, "x", 0);
    return 0;
}

static int tiocsti(const char *unused)
{
    (void)unused;
    return shut(ioctl(0, TIOCSTI, "x"));
}

static int tiocsti_high(const char *unused)
{
    (void)unused;
    return shut(syscall(SYS_ioctl, 0L, (long)((uint64_t)1 << 32 | TIOCSTI), "x"));
}

static int tioclinux(const char *unused)
{
    char subcode = 6;           /* TIOCL_GETSHIFTSTATE, which changes nothing */
    (void)unused;
    if (ioctl(0, 0x541c, &subcode) < 0 && errno == EPERM)
        return shut(-1);
    return 0;
}

static int usersock(const char *unused)
{
    (void)unused;
    return shut(socket(AF_NETLINK, SOCK_RAW, NETLINK_USERSOCK));
}

static socklen_t address(const char *name, struct sockaddr_un *to)
{
    memset(to, 0, sizeof *to);
    to->sun_family = AF_UNIX;
    strncpy(to->sun_path, name, sizeof to->sun_path - 1);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    if (to->sun_path[0] == '@') {
        to->sun_path[0] = '\0';
        return length;
    }
    return length + 1;
}

/* connect to a path, or to an abstract name that begins with '@' */
static int unix_connect(const char *name)
{
    struct sockaddr_un to;
    socklen_t length = address(name, &to);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return shut(fd < 0 ? -1 : connect(fd, (struct sockaddr *)&to, length));
}

/* One datagram, by sendmsg: the only way that a filter which refuses sendto leaves. */
static int datagram(const char *name)
{
    struct sockaddr_un to;
    char byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_name = &to, .msg_namelen = address(name, &to),
                             .msg_iov = &part, .msg_iovlen = 1};
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    return shut(fd < 0 ? -1 : sendmsg(fd, &message, 0));
}

/* sendto a path from one end of a pair, which needs no socket(2) */
static int pair_sendto(const char *name, int type)
{
    struct sockaddr_un to;
    int pair[2];
    socklen_t length = address(name, &to);
    if (socketpair(AF_UNIX, type, 0, pair) < 0)
        return shut(-1);
    return shut(sendto(pair[0], "x", 1, 0, (struct sockaddr *)&to, length));
}

static int dgram_pair(const char *name) { return pair_sendto(name, SOCK_DGRAM); }
static int raw_pair(const char *name) { return pair_sendto(name, SOCK_RAW); }
static int dgram_pair_high(const char *name)
{
    struct sockaddr_un to;
    int pair[2];
    socklen_t length = address(name, &to);
    if (syscall(SYS_socketpair, (long)((uint64_t)1 << 32 | AF_UNIX),
                (long)((uint64_t)1 << 32 | SOCK_DGRAM), 0L, pair) < 0)
        return shut(-1);
    return shut(sendto(pair[0], "x", 1, 0, (struct sockaddr *)&to, length));
}

/* An inherited datagram socket, pointed at a path. */
static int fd_sendto(const char *fd_and_name)
{
    struct sockaddr_un to;
    const char *name = strchr(fd_and_name, ':') + 1;
    socklen_t length = address(name, &to);
    return shut(sendto(atoi(fd_and_name), "x", 1, 0, (struct sockaddr *)&to, length));
}

static int inet(const char *unused)
{
    (void)unused;
    return shut(socket(AF_INET, SOCK_STREAM, 0));
}

static int packet(const char *unused)
{
    (void)unused;
    return shut(socket(AF_PACKET, SOCK_RAW, 0));
}

int main(int argc, char **argv)
{
    const struct { const char *name; int (*try)(const char *argument); } holes[] = {
        {"vsock", vsock}, {"vsock-high", vsock_high}, {"families", families},
#if defined(__x86_64__)
        {"int80-vsock", int80_vsock}, {"x32-vsock", x32_vsock},
#elif defined(__i386__)
        {"socketcall-vsock", socketcall_vsock},
#endif
        {"io-uring", io_uring_socket}, {"keys", keys}, {"upcall", upcall},
        {"tiocsti", tiocsti}, {"tiocsti-high", tiocsti_high}, {"tioclinux", tioclinux},
        {"usersock", usersock}, {"unix", unix_connect}, {"datagram", datagram},
        {"dgram-pair", dgram_pair}, {"raw-pair", raw_pair}, {"dgram-pair-high", dgram_pair_high}, {"fd-sendto", fd_sendto},
        {"inet", inet}, {"packet", packet},
    };
    for (size_t i = 0; argc >= 2 && i < sizeof holes / sizeof *holes; i++)
        if (strcmp(argv[1], holes[i].name) == 0)
            return holes[i].try(argc > 2 ? argv[2] : NULL);
    return 2;
}
