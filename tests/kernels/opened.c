/* AF_VSOCK is created only, never bound or connected. */
#define _GNU_SOURCE
#include "opened.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

static int internet(int type)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(8000),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, type, 0);
    return fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0 ? -1 : fd;
}

static int pair_end(int type)
{
    int pair[2];
    return socketpair(AF_UNIX, type, 0, pair) < 0 ? -1 : pair[0];
}

static int ring(void)
{
    struct io_uring_params parameters;
    memset(&parameters, 0, sizeof parameters);
    return (int)syscall(SYS_io_uring_setup, 4, &parameters);
}

static int faults(void)
{
    int fd = (int)syscall(SYS_userfaultfd, 1 /* UFFD_USER_MODE_ONLY, Linux 5.11 */);
    return fd < 0 && errno == EINVAL ? (int)syscall(SYS_userfaultfd, 0) : fd;
}

static int signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    return signalfd(-1, &none, 0);
}

static int one_pipe(void)
{
    int ends[2];
    return pipe(ends) < 0 ? -1 : ends[1];
}

static int tcp(void) { return internet(SOCK_STREAM); }
static int udp(void) { return internet(SOCK_DGRAM); }
static int netlink(void) { return socket(AF_NETLINK, SOCK_RAW, 0); }
static int unix_datagram(void) { return socket(AF_UNIX, SOCK_DGRAM, 0); }
static int packet(void) { return socket(AF_PACKET, SOCK_RAW, 0); }
static int vsock(void) { return socket(AF_VSOCK, SOCK_STREAM, 0); }
static int tun(void) { return open("/dev/net/tun", O_RDWR); }
static int netns(void) { return open("/proc/self/ns/net", O_RDONLY); }
static int userns(void) { return open("/proc/self/ns/user", O_RDONLY); }
static int pidfd(void) { return (int)syscall(SYS_pidfd_open, getpid(), 0); }
static int procdir(void) { return open("/proc/self", O_RDONLY | O_DIRECTORY); }
static int memory(void) { return open("/proc/self/mem", O_RDWR); }
static int events(void) { return eventfd(0, 0); }
static int timer(void) { return timerfd_create(CLOCK_MONOTONIC, 0); }
static int polls(void) { return epoll_create1(0); }
static int notify(void) { return inotify_init1(0); }
static int memfd(void) { return memfd_create("x", 0); }
static int null(void) { return open("/dev/null", O_RDWR); }
static int file(void) { return open("/etc/passwd", O_RDONLY); }
static int stream_pair(void) { return pair_end(SOCK_STREAM); }
static int packet_pair(void) { return pair_end(SOCK_SEQPACKET); }
static int datagram_pair(void) { return pair_end(SOCK_DGRAM); }

int open_as(const char *name, int number)
{
    static const struct { const char *name; int (*open)(void); } kinds[] = {
        {"tcp", tcp}, {"udp", udp}, {"netlink", netlink}, {"packet", packet}, {"vsock", vsock},
        {"tun", tun}, {"netns", netns}, {"userns", userns}, {"pidfd", pidfd},
        {"procdir", procdir}, {"memory", memory}, {"io_uring", ring}, {"userfaultfd", faults},
        {"eventfd", events}, {"timerfd", timer}, {"epoll", polls}, {"signalfd", signals},
        {"inotify", notify}, {"memfd", memfd}, {"null", null}, {"file", file}, {"pipe", one_pipe},
        {"stream-pair", stream_pair}, {"seqpacket-pair", packet_pair},
        {"datagram-pair", datagram_pair}, {"unix-datagram", unix_datagram},
    };
    errno = EINVAL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0) {
            int fd = kinds[i].open();
            return fd < 0 ? -1 : dup2(fd, number);
        }
    return -1;
}
