#define _GNU_SOURCE
#include "around.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FOREIGN_PORT = 8001, MOST_TRIES = 5, PATIENCE = 10000 /* microseconds */,
       UNUSED_FD = 100 };
enum { ALL_FILE_RIGHTS = (1 << 14) - 1 /* of Landlock's ABI 2 */, PATH_BENEATH = 1 };

int enter_file_domain(void)
{
    const struct { uint64_t handled; } attribute = {ALL_FILE_RIGHTS};
    const struct { uint64_t allowed; int32_t parent; } __attribute__((packed))
        rule = {ALL_FILE_RIGHTS, open("/", O_PATH | O_CLOEXEC)};
    int domain = (int)syscall(444 /* landlock_create_ruleset */, &attribute, sizeof attribute, 0);

    if (rule.parent < 0 || domain < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        syscall(445 /* landlock_add_rule */, domain, PATH_BENEATH, &rule, 0) < 0 ||
        syscall(446 /* landlock_restrict_self */, domain, 0) < 0)
        return -1;
    return close(rule.parent) | close(domain);
}

int refuse(const char *call)
{
    int is_clone = strcmp(call, "clone3") == 0;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, is_clone ? SYS_clone3 : SYS_getsockopt, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)(is_clone ? ENOSYS : EPERM)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};

    errno = EINVAL;
    if (!is_clone && strcmp(call, "getsockopt") != 0)
        return -1;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

int enter_both(const struct netless_namespace *both)
{
    if (setns(both->user_fd, CLONE_NEWUSER) < 0)
        return -1;
    return setns(both->net_fd, CLONE_NEWNET);
}

/* ---- a foreign namespace ---- */

static int listen_there(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(FOREIGN_PORT),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 8) < 0)
        return -1;
    return fd;
}

/* Ends with its parent. */
static _Noreturn void be_the_listener(const struct netless_namespace *foreign, int ready)
{
    int fd = enter_both(foreign) < 0 ? -1 : listen_there();

    if (fd < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || write(ready, "r", 1) != 1)
        _exit(1);
    for (;;)
        close(accept(fd, NULL, NULL));
}

static int start_listener(const struct netless_namespace *foreign)
{
    char byte;
    int ready[2];

    if (pipe2(ready, O_CLOEXEC) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0)
        be_the_listener(foreign, ready[1]);
    close(ready[1]);
    ssize_t length = pid < 0 ? -1 : read(ready[0], &byte, 1);
    close(ready[0]);
    return length == 1 ? 0 : -1;
}

/* A number is given out again when the kernel has taken the namespace down. The entries of
   /proc/net have numbers of the same kind, so what was made in vain has to go as well. */
static int make_with_inode(uint64_t inode, struct netless_namespace *made)
{
    for (int tries = 1; tries <= MOST_TRIES; tries++) {
        struct netless_report report = {.step = NETLESS_STEP_NONE};
        if (netless_namespace_make(0, made, &report) < 0) {
            errno = report.error;
            return -1;
        }
        if (inode == 0 || made->net.inode == inode)
            return 0;
        netless_namespace_close(made);
        usleep((useconds_t)tries * PATIENCE);
    }
    errno = EAGAIN;
    return -1;
}

int replace(const struct netless_namespace *kept, struct netless_namespace *foreign)
{
    int is_kept = kept->user_fd >= 0;

    if (is_kept && (close(kept->user_fd) < 0 || close(kept->net_fd) < 0))
        return -1;
    if (make_with_inode(is_kept ? kept->net.inode : 0, foreign) < 0 ||
        start_listener(foreign) < 0)
        return -1;
    if (!is_kept)
        return 0;
    /* The handles may stand under each other's numbers. */
    int user = fcntl(foreign->user_fd, F_DUPFD_CLOEXEC, UNUSED_FD);
    int net = fcntl(foreign->net_fd, F_DUPFD_CLOEXEC, UNUSED_FD);
    if (user < 0 || net < 0 || dup2(user, kept->user_fd) < 0 || dup2(net, kept->net_fd) < 0)
        return -1;
    return close(user) | close(net);
}
