/*
 * deny RULE... -- COMMAND...: executes COMMAND under a seccomp filter that lets
 * the named system calls fail, as the profile of a container or sandbox does.
 *
 *   unshare=EPERM              every unshare
 *   clone&0x7e020000=EPERM     with one of these bits in the first argument
 *   prctl@22=EPERM             with this first argument
 *   ioctl%0x894c=EPERM         with this second argument
 *
 * A caller without CAP_SYS_ADMIN gets no_new_privs, as it has to.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_INSTRUCTIONS = 256 };

static const struct { const char *name; int number; } calls[] = {
    {"clone", SYS_clone}, {"clone3", 435}, {"close_range", 436}, {"getsockopt", SYS_getsockopt},
    {"ioctl", SYS_ioctl}, {"landlock_add_rule", 445},
    {"landlock_create_ruleset", 444}, {"landlock_restrict_self", 446}, {"mount", SYS_mount},
    {"prctl", SYS_prctl}, {"seccomp", SYS_seccomp}, {"setns", SYS_setns},
    {"socketpair", SYS_socketpair}, {"unshare", SYS_unshare},
};

static const struct { const char *name; int number; } errors[] = {
    {"EACCES", EACCES}, {"EAGAIN", EAGAIN}, {"EINVAL", EINVAL}, {"EMFILE", EMFILE},
    {"ENFILE", ENFILE}, {"ENOMEM", ENOMEM}, {"ENOSPC", ENOSPC}, {"ENOSYS", ENOSYS},
    {"EPERM", EPERM}, {"EUSERS", EUSERS},
};

static struct sock_filter code[MOST_INSTRUCTIONS];
static unsigned short length;

static void fail(const char *what, const char *which)
{
    fprintf(stderr, "deny: %s: %s\n", what, which);
    exit(125);
}

static void emit(unsigned short operation, unsigned int k, unsigned char jt, unsigned char jf)
{
    if (length == MOST_INSTRUCTIONS)
        fail("too many rules", "");
    code[length++] = (struct sock_filter){operation, jt, jf, k};
}

static int call_number(const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strlen(calls[i].name) == size && strncmp(calls[i].name, name, size) == 0)
            return calls[i].number;
    fail("unknown system call", name);
    return -1;
}

static int error_number(const char *name)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strcmp(errors[i].name, name) == 0)
            return errors[i].number;
    fail("unknown error", name);
    return -1;
}

/* The low half of an argument: x86 and the other little-endian machines. */
static void add_rule(const char *rule)
{
    size_t size = strcspn(rule, "&@%=");
    const char *equals = strchr(rule, '=');
    int number = call_number(rule, size);

    if (equals == NULL)
        fail("no error", rule);
    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)number, 0, rule[size] == '=' ? 1 : 3);
    if (rule[size] != '=') {
        unsigned int value = (unsigned int)strtoul(rule + size + 1, NULL, 0);
        emit(BPF_LD | BPF_W | BPF_ABS,
             offsetof(struct seccomp_data, args) + (rule[size] == '%' ? 8 : 0), 0, 0);
        emit(BPF_JMP | (rule[size] == '&' ? BPF_JSET : BPF_JEQ) | BPF_K, value, 0, 1);
    }
    emit(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned int)error_number(equals + 1), 0, 0);
}

int main(int argc, char **argv)
{
    int at = 1;

    for (; at < argc && strcmp(argv[at], "--") != 0; at++)
        add_rule(argv[at]);
    if (++at >= argc)
        fail("usage", "deny RULE... -- COMMAND...");
    emit(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    struct sock_fprog program = {.len = length, .filter = code};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0 &&
        (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0))
        fail("seccomp", strerror(errno));
    execvp(argv[at], argv + at);
    fail(argv[at], strerror(errno));
}
