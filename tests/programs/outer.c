/*
 * outer PROFILE -- COMMAND...: executes COMMAND under the seccomp filter of a sandbox that
 * people run things in.  What each refuses was read in its source; the program is our own.
 *
 *   codex             Codex's filter for commands without network: every call on sockets but
 *                     socket and socketpair of AF_UNIX, recvfrom, sendmsg and recvmsg
 *   codex-getsockopt  the same, and getsockopt
 *   docker            what Docker's default profile refuses to a container without
 *                     CAP_SYS_ADMIN and CAP_SYS_PTRACE
 *   sandbox-runtime   sandbox-runtime's: AF_UNIX sockets, but for connected pairs, and io_uring
 *
 * Sets no_new_privs, as all of them do or may do.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "no such profile on this machine"
#endif

enum { MOST_INSTRUCTIONS = 256, NAMESPACES = 0x7e020000 /* CLONE_NEW* */ };
enum profile { CODEX = 1, CODEX_GETSOCKOPT = 2, DOCKER = 4, SANDBOX_RUNTIME = 8,
               EITHER_CODEX = CODEX | CODEX_GETSOCKOPT };
/* Always; where the low half of the argument, masked, is or is not the value; or has its bits. */
enum test { ALWAYS, IS, IS_NOT, HAS };

static const struct rule {
    int profiles, number, error;
    enum test test;
    unsigned int argument, mask, value;
} rules[] = {
    {EITHER_CODEX, SYS_connect, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_accept, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_accept4, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_bind, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_listen, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_getpeername, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_getsockname, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_shutdown, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_sendto, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_sendmmsg, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_recvmmsg, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_setsockopt, EPERM, ALWAYS, 0, 0, 0},
    {CODEX_GETSOCKOPT, SYS_getsockopt, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_ptrace, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_process_vm_readv, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_process_vm_writev, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX, SYS_socket, EPERM, IS_NOT, 0, ~0U, AF_UNIX},
    {EITHER_CODEX, SYS_socketpair, EPERM, IS_NOT, 0, ~0U, AF_UNIX},

    {SANDBOX_RUNTIME, SYS_socket, EPERM, IS, 0, ~0U, AF_UNIX},
    {SANDBOX_RUNTIME, SYS_socketpair, EPERM, IS, 1, 0xf, SOCK_DGRAM},
    {SANDBOX_RUNTIME, SYS_socketpair, EPERM, IS, 1, 0xf, SOCK_RAW},

    {EITHER_CODEX | SANDBOX_RUNTIME | DOCKER, 425 /* io_uring_setup */, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX | SANDBOX_RUNTIME | DOCKER, 426 /* io_uring_enter */, EPERM, ALWAYS, 0, 0, 0},
    {EITHER_CODEX | SANDBOX_RUNTIME | DOCKER, 427 /* io_uring_register */, EPERM, ALWAYS, 0, 0, 0},

    {DOCKER, SYS_unshare, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_setns, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_clone, EPERM, HAS, 0, 0, NAMESPACES},
    {DOCKER, 435 /* clone3 */, ENOSYS, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_mount, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_umount2, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_pivot_root, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, 428 /* open_tree */, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, 429 /* move_mount */, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, 430 /* fsopen */, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, 438 /* pidfd_getfd */, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_kcmp, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_add_key, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_request_key, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_keyctl, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_bpf, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_perf_event_open, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_userfaultfd, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_open_by_handle_at, EPERM, ALWAYS, 0, 0, 0},
    {DOCKER, SYS_socket, EPERM, IS, 0, ~0U, AF_VSOCK},
};

static const struct { const char *name; enum profile profile; } profiles[] = {
    {"codex", CODEX}, {"codex-getsockopt", CODEX_GETSOCKOPT}, {"docker", DOCKER},
    {"sandbox-runtime", SANDBOX_RUNTIME},
};

static struct sock_filter code[MOST_INSTRUCTIONS];
static unsigned short length;

static void fail(const char *what, const char *which)
{
    fprintf(stderr, "outer: %s: %s\n", what, which);
    exit(125);
}

static void emit(unsigned short operation, unsigned int k, unsigned char jt, unsigned char jf)
{
    if (length == MOST_INSTRUCTIONS)
        fail("too many rules", "");
    code[length++] = (struct sock_filter){operation, jt, jf, k};
}

/* Each is: load the number; another one? on to the next; load, mask and test the argument. */
static void emit_rule(const struct rule *rule)
{
    unsigned char rest = rule->test == ALWAYS ? 1 : rule->test == HAS ? 3 : 4;

    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)rule->number, 0, rest);
    if (rule->test != ALWAYS)
        emit(BPF_LD | BPF_W | BPF_ABS,
             (unsigned int)offsetof(struct seccomp_data, args) + 8 * rule->argument, 0, 0);
    if (rule->test == IS || rule->test == IS_NOT)
        emit(BPF_ALU | BPF_AND | BPF_K, rule->mask, 0, 0);
    if (rule->test == IS_NOT)
        emit(BPF_JMP | BPF_JEQ | BPF_K, rule->value, 1, 0);
    else if (rule->test != ALWAYS)
        emit(BPF_JMP | (rule->test == HAS ? BPF_JSET : BPF_JEQ) | BPF_K, rule->value, 0, 1);
    emit(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned int)rule->error, 0, 0);
}

/* Of other architectures than the machine's own, nothing runs. */
static void emit_profile(enum profile profile)
{
    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch), 0, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    emit(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].profiles & (int)profile)
            emit_rule(&rules[i]);
    emit(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
}

int main(int argc, char **argv)
{
    if (argc < 4 || strcmp(argv[2], "--") != 0)
        fail("usage", "outer PROFILE -- COMMAND...");
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++)
        if (strcmp(argv[1], profiles[i].name) == 0)
            emit_profile(profiles[i].profile);
    if (length == 0)
        fail("no such profile", argv[1]);
    const struct sock_fprog program = {.len = length, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
        fail("seccomp", strerror(errno));
    execvp(argv[3], argv + 3);
    fail(argv[3], strerror(errno));
}
