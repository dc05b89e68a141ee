/*
 * attempt WHAT [ARGUMENT]: exit status 0 when it works, 1 when it is refused.
 *
 *   listen            TCP and UDP on 127.0.0.1 and ::1, port 8000; AF_UNIX /run/s (stream), /run/d
 *                     (datagram), @netless-outside and @netless-datagram; a byte to /run/reached
 *                     for each arrival over the network
 *   serve @NAME       an abstract socket, until killed; says "r" when ready
 *   udp ADDRESS       a datagram to port 8000 there
 *   through FD        a byte through an inherited descriptor
 *   send FD @NAME     a datagram to an abstract name through an inherited descriptor
 *   closed FD         that number is not open
 *   own-loopback      a TCP server and a client of it, both in here
 *   own-unix PATH     an AF_UNIX server and a client of it, both in here
 *   move              a rename and a link from one directory to another
 *   lost-packets, lost-stream
 *                     a write to a socket pair of that kind whose other end is closed: EPIPE
 *   quit              a signal that dumps core, to itself
 *   hunt HEX          says "r", reads a pid, writes "X" to that address of that process by
 *                     all known means, says "d"
 *   as UID PROGRAM... the program, as that user
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum { PORT = 8000 };

static int outcome(long value)
{
    if (value < 0)
        fprintf(stderr, "%s\n", strerror(errno));
    return value < 0;
}

static socklen_t internet(const char *text, struct sockaddr_storage *address)
{
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
    struct sockaddr_in *four = (struct sockaddr_in *)address;

    memset(address, 0, sizeof *address);
    if (inet_pton(AF_INET6, text, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons(PORT);
        return sizeof *six;
    }
    four->sin_family = AF_INET;
    four->sin_port = htons(PORT);
    inet_pton(AF_INET, text, &four->sin_addr);
    return sizeof *four;
}

static socklen_t local(const char *name, struct sockaddr_storage *address)
{
    struct sockaddr_un *to = (struct sockaddr_un *)address;
    memset(address, 0, sizeof *address);
    to->sun_family = AF_UNIX;
    snprintf(to->sun_path, sizeof to->sun_path, "%s", name);
    if (name[0] == '@')
        to->sun_path[0] = '\0';
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name) + (name[0] != '@'));
}

static int serve(const struct sockaddr_storage *address, socklen_t length, int type)
{
    int fd = socket(address->ss_family, type, 0), on = 1;
    if (fd < 0)
        return -1;
    if (address->ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, (const struct sockaddr *)address, length) < 0)
        return -1;
    return type != SOCK_DGRAM && listen(fd, 64) < 0 ? -1 : fd;
}

static int reach(const struct sockaddr_storage *address, socklen_t length)
{
    int fd = socket(address->ss_family, SOCK_STREAM, 0);
    return fd < 0 ? -1 : connect(fd, (const struct sockaddr *)address, length);
}

/* Each arrival over the network is one byte more in /run/reached. */
static int be_the_outside(void)
{
    static const struct { const char *name; int type, is_network; } all[] = {
        {"127.0.0.1", SOCK_STREAM, 1}, {"127.0.0.1", SOCK_DGRAM, 1}, {"::1", SOCK_STREAM, 1},
        {"::1", SOCK_DGRAM, 1}, {"/run/s", SOCK_STREAM, 0}, {"/run/d", SOCK_DGRAM, 0},
        {"@netless-outside", SOCK_STREAM, 0}, {"@netless-datagram", SOCK_DGRAM, 0},
    };
    enum { COUNT = sizeof all / sizeof *all };
    struct pollfd polled[COUNT];
    int reached = open("/run/reached", O_WRONLY | O_CREAT | O_APPEND, 0666);

    umask(0);
    for (int i = 0; i < COUNT; i++) {
        struct sockaddr_storage address;
        socklen_t length = all[i].is_network ? internet(all[i].name, &address)
                                             : local(all[i].name, &address);
        polled[i] = (struct pollfd){serve(&address, length, all[i].type), POLLIN, 0};
        if (polled[i].fd < 0)
            return outcome(-1);
    }
    if (write(1, "r\n", 2) != 2)
        return 2;
    while (poll(polled, COUNT, -1) > 0)
        for (int i = 0; i < COUNT; i++) {
            char data[512];
            if (polled[i].revents == 0)
                continue;
            if (all[i].type == SOCK_DGRAM)
                recv(polled[i].fd, data, sizeof data, 0);
            else                /* a kept AF_UNIX connection would keep its maker's namespace */
                close(accept(polled[i].fd, NULL, NULL));
            if (all[i].is_network && write(reached, "x", 1) != 1)
                return outcome(-1);
        }
    return 1;
}

static _Noreturn void serve_for_siblings(const char *name)
{
    struct sockaddr_storage address;
    socklen_t length = local(name, &address);
    int fd = serve(&address, length, SOCK_STREAM);
    if (write(1, "r", 1) != 1)  /* a victim even where the socket is refused */
        exit(2);
    for (;;)
        if (fd < 0)
            pause();
        else
            close(accept(fd, NULL, NULL));
}

static int own_server(const struct sockaddr_storage *address, socklen_t length)
{
    return outcome(serve(address, length, SOCK_STREAM) < 0 ? -1 : reach(address, length));
}

static int write_memory(pid_t pid, unsigned long at)
{
    char byte = 'X', path[64];
    struct iovec here = {&byte, 1}, there = {(void *)at, 1};
    int done = process_vm_writev(pid, &here, 1, &there, 1, 0) == 1;

    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int fd = open(path, O_RDWR);
    done |= fd >= 0 && pwrite(fd, &byte, 1, (off_t)at) == 1;
    return done | (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0);   /* ends with this process */
}

static int hunt(unsigned long at)
{
    pid_t victim;
    if (write(1, "r", 1) != 1 || read(0, &victim, sizeof victim) != sizeof victim)
        return 2;
    int done = write_memory(victim, at);
    return write(1, "d", 1) == 1 && done ? 0 : 1;
}

static int move(void)
{
    char here[] = "/run/move.XXXXXX";

    if (mkdtemp(here) == NULL || chdir(here) < 0 || mkdir("a", 0700) < 0 || mkdir("b", 0700) < 0 ||
        close(open("a/x", O_WRONLY | O_CREAT, 0600)) < 0)
        return 2;
    return outcome(rename("a/x", "b/x") < 0 ? -1 : link("b/x", "a/y"));
}

/* A signal would end it. */
static int write_to_nobody(int type)
{
    int pair[2];
    signal(SIGPIPE, SIG_DFL);
    if (socketpair(AF_UNIX, type, 0, pair) < 0 || close(pair[1]) < 0)
        return 2;
    return write(pair[0], "x", 1) < 0 && errno == EPIPE ? 0 : 1;
}

static int run_as(unsigned int id, char **program)
{
    if (setgroups(0, NULL) < 0 || setresgid(id, id, id) < 0 || setresuid(id, id, id) < 0)
        return 2;
    execv(program[0], program);
    return 2;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "", *argument = argc > 2 ? argv[2] : "";
    struct sockaddr_storage address;
    socklen_t length;

    if (strcmp(what, "listen") == 0)
        return be_the_outside();
    if (strcmp(what, "serve") == 0)
        serve_for_siblings(argument);
    if (strcmp(what, "through") == 0)
        return outcome(write(atoi(argument), "x", 1));
    if (strcmp(what, "send") == 0 && argc > 3) {
        length = local(argv[3], &address);
        return outcome(sendto(atoi(argument), "x", 1, 0, (struct sockaddr *)&address, length));
    }
    if (strcmp(what, "move") == 0)
        return move();
    if (strcmp(what, "lost-packets") == 0 || strcmp(what, "lost-stream") == 0)
        return write_to_nobody(what[5] == 'p' ? SOCK_SEQPACKET : SOCK_STREAM);
    if (strcmp(what, "quit") == 0)
        return raise(SIGQUIT);
    if (strcmp(what, "closed") == 0)
        return fcntl(atoi(argument), F_GETFD) >= 0;
    if (strcmp(what, "hunt") == 0)
        return hunt(strtoul(argument, NULL, 16));
    if (strcmp(what, "as") == 0 && argc > 3)
        return run_as((unsigned int)atoi(argument), argv + 3);
    if (strcmp(what, "own-unix") == 0) {
        length = local(argument, &address);
        return own_server(&address, length);
    }
    length = internet(strcmp(what, "own-loopback") == 0 ? "127.0.0.1" : argument, &address);
    if (strcmp(what, "own-loopback") == 0)
        return own_server(&address, length);
    if (strcmp(what, "udp") != 0)
        return 2;
    int fd = socket(address.ss_family, SOCK_DGRAM, 0);
    return outcome(fd < 0 ? -1 : sendto(fd, "x", 1, 0, (struct sockaddr *)&address, length));
}
