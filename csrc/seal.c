/*
 * The seal: what closes the ways out that an empty network namespace leaves
 * open.  A Landlock domain, a seccomp filter, a smaller bounding set.
 *
 * netless_seal does not shrink the permitted set before execve: as long as the child
 * shares the parent's memory, its full set is what keeps other children of the
 * same user namespace from tracing it (ptrace(2), "access mode checking").
 */
#define _GNU_SOURCE
#include "spawn.h"

#include "machine.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Numbers that older headers lack; the same on every architecture. */
#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_restrict_self 446
#endif
#ifndef SECCOMP_FILTER_FLAG_SPEC_ALLOW
#define SECCOMP_FILTER_FLAG_SPEC_ALLOW 4
#endif
#define LANDLOCK_VERSION_FLAG 1
#ifndef SYS_landlock_add_rule
#define SYS_landlock_add_rule 445
#endif
#define LANDLOCK_PATH_BENEATH 1
#define LANDLOCK_FS_REFER (1 << 13)             /* ABI 2, Linux 5.19 */
#define LANDLOCK_FS_RESOLVE_UNIX (1 << 16)      /* ABI 9, Linux 7.1 */
#define LANDLOCK_SCOPE_ABSTRACT_UNIX 1          /* ABI 6, Linux 6.12 */
#define LANDLOCK_BIND_AND_CONNECT_TCP 3         /* ABI 4, Linux 6.7 */

/* The capabilities that work inside a user namespace and would undo the seal there.
   Others (SYS_MODULE, SYS_RAWIO, BPF, ...) are checked against the initial one. */
static const int dropped_capabilities[] = {
    CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_PTRACE, CAP_SYS_ADMIN,
};

/* TUNSETIFF, as most machines and as PowerPC number it. */
#define TUN_ATTACH 0x400454ca
#define TUN_ATTACH_PPC 0x800454ca

/* ---- the filter ---- */

/* Where a rule leads. Each is a piece of code at the end of the program. */
enum target { T_NEXT, T_ALLOW, T_ENOSYS, T_EPERM, T_SOCKET, T_SOCKETPAIR, T_IOCTL, T_COUNT };

struct architecture {
    uint32_t audit, compat;
    int socket, socketpair, socketcall, first_key, ioctl, ptrace, setns;
    int vm_readv, vm_writev, kcmp;
    uint32_t foreign;           /* x32: numbers from here on; 0: none */
    int big_endian;
};

static const struct architecture architectures[] = {
    {AUDIT_ARCH_X86_64, AUDIT_ARCH_I386, 41, 53, -1, 248, 16, 101, 308, 310, 311, 312, 0x40000000, 0},
    {AUDIT_ARCH_I386, 0, 359, 360, 102, 286, 54, 26, 346, 347, 348, 349, 0, 0},
    {AUDIT_ARCH_AARCH64, AUDIT_ARCH_ARM, 198, 199, -1, 217, 29, 117, 268, 270, 271, 272, 0, 0},
    {AUDIT_ARCH_ARM, 0, 281, 288, 102, 309, 54, 26, 375, 376, 377, 378, 0, 0},
    {AUDIT_ARCH_RISCV64, 0, 198, 199, -1, 217, 29, 117, 268, 270, 271, 272, 0, 0},
    {AUDIT_ARCH_LOONGARCH64, 0, 198, 199, -1, 217, 29, 117, 268, 270, 271, 272, 0, 0},
    {AUDIT_ARCH_PPC64LE, 0, 326, 333, 102, 269, 54, 26, 350, 351, 352, 354, 0, 0},
    {AUDIT_ARCH_S390X, 0, 359, 360, 102, 278, 54, 26, 339, 340, 341, 343, 0, 1},
};

enum { IO_URING_FIRST = 425, IO_URING_LAST = 427, PIDFD_GETFD = 438, MOST_RULES = 16 };

struct rule {
    uint32_t first, last;
    enum target target;
};

struct builder {
    struct netless_filter *filter;
    uint8_t jump_true[192];     /* enum target of each instruction, T_NEXT: none */
    uint8_t jump_false[192];
    unsigned int place[T_COUNT];
    int big_endian;
};

static unsigned int emit(struct builder *b, uint16_t code, uint32_t k, enum target on_true,
                         enum target on_false)
{
    unsigned int at = b->filter->length++;
    b->filter->code[at] = (struct netless_instruction){.code = code, .k = k};
    b->jump_true[at] = (uint8_t)on_true;
    b->jump_false[at] = (uint8_t)on_false;
    return at;
}

static void emit_load(struct builder *b, uint32_t offset)
{
    emit(b, BPF_LD | BPF_W | BPF_ABS, offset, T_NEXT, T_NEXT);
}

/* The low half of an argument: the kernel ignores the rest of an int. */
static void emit_load_argument(struct builder *b, int number)
{
    emit_load(b, (uint32_t)offsetof(struct seccomp_data, args) + 8 * (uint32_t)number +
                     (b->big_endian ? 4 : 0));
}

static void emit_equal(struct builder *b, uint32_t k, enum target on_true, enum target on_false)
{
    emit(b, BPF_JMP | BPF_JEQ | BPF_K, k, on_true, on_false);
}

static void emit_return(struct builder *b, uint32_t k)
{
    emit(b, BPF_RET | BPF_K, k, T_NEXT, T_NEXT);
}

static void emit_errno(struct builder *b, int error)
{
    emit_return(b, SECCOMP_RET_ERRNO | (uint32_t)error);
}

/* A balanced tree, because the kernel walks it for every number when it is
   installed.  Numbers below `known` cannot arrive here. */
static void emit_tree(struct builder *b, const struct rule *rules, int count, uint32_t known)
{
    if (count > 1) {
        const struct rule *middle = rules + count / 2;
        unsigned int split = emit(b, BPF_JMP | BPF_JGE | BPF_K, middle->first, T_NEXT, T_NEXT);
        emit_tree(b, rules, count / 2, known);
        b->filter->code[split].jt = (uint8_t)(b->filter->length - split - 1);
        emit_tree(b, middle, count - count / 2, middle->first);
        return;
    }
    if (rules->first == rules->last) {
        emit_equal(b, rules->first, rules->target, T_ALLOW);
        return;
    }
    if (rules->last == UINT32_MAX) {
        emit(b, BPF_JMP | BPF_JGE | BPF_K, rules->first, rules->target, T_ALLOW);
        return;
    }
    if (rules->first > known)
        emit(b, BPF_JMP | BPF_JGE | BPF_K, rules->first, T_NEXT, T_ALLOW);
    emit(b, BPF_JMP | BPF_JGT | BPF_K, rules->last, T_ALLOW, rules->target);
}

/* Keeps the list sorted; a system call that does not exist there has number -1. */
static void add_rule(struct rule *rules, int *count, int first, int last, enum target target)
{
    int at = *count;
    if (first < 0)
        return;
    for (; at > 0 && rules[at - 1].first > (uint32_t)first; at--)
        rules[at] = rules[at - 1];
    rules[at] = (struct rule){(uint32_t)first, (uint32_t)last, target};
    ++*count;
}

static int collect_rules(const struct architecture *a, int wanted, struct rule *rules)
{
    int count = 0;

    add_rule(rules, &count, a->ioctl, a->ioctl, T_IOCTL);
    add_rule(rules, &count, a->socket, a->socket, T_SOCKET);
    add_rule(rules, &count, a->socketcall, a->socketcall, T_ENOSYS);
    add_rule(rules, &count, a->first_key, a->first_key + 2, T_ENOSYS);
    add_rule(rules, &count, IO_URING_FIRST, IO_URING_LAST, T_ENOSYS);
    if (wanted & NETLESS_RULE_UNIX_STRICT)
        add_rule(rules, &count, a->socketpair, a->socketpair, T_SOCKETPAIR);
    if (wanted & NETLESS_RULE_BARE) {
        const int traces[] = {a->ptrace, a->setns, a->vm_readv, a->vm_writev, a->kcmp, PIDFD_GETFD};
        for (size_t i = 0; i < sizeof traces / sizeof *traces; i++)
            add_rule(rules, &count, traces[i], traces[i], T_EPERM);
    }
    if (a->foreign != 0)
        rules[count++] = (struct rule){a->foreign, UINT32_MAX, T_ENOSYS};
    return count;
}

/* The kernel walks the program for every number when it is installed, to know what
   is always allowed (Linux 5.11), and gives up a number at what is not constant.
   Programs of the compatible architecture are too rare for that to pay. */
static void emit_architecture(struct builder *b, const struct architecture *a, int wanted,
                              int is_rare)
{
    struct rule rules[MOST_RULES];
    int count = collect_rules(a, wanted, rules);
    unsigned int test = emit(b, BPF_JMP | BPF_JEQ | BPF_K, a->audit, T_NEXT, T_NEXT);

    if (is_rare)
        emit_load_argument(b, 0);
    emit_load(b, offsetof(struct seccomp_data, nr));
    emit_tree(b, rules, count, 0);
    b->filter->code[test].jf = (uint8_t)(b->filter->length - test - 1);
}

static void place(struct builder *b, enum target target)
{
    b->place[target] = b->filter->length;
}

static void emit_socket_checks(struct builder *b, int wanted)
{
    place(b, T_SOCKET);
    emit_load_argument(b, 0);
    if (!(wanted & NETLESS_RULE_UNIX_STRICT))
        emit_equal(b, AF_UNIX, T_ALLOW, T_NEXT);
    if (!(wanted & NETLESS_RULE_BARE)) {
        emit_equal(b, AF_INET, T_ALLOW, T_NEXT);
        emit_equal(b, AF_INET6, T_ALLOW, T_NEXT);
        unsigned int other = emit(b, BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, T_NEXT, T_NEXT);
        emit_load_argument(b, 2);
        unsigned int last = emit(b, BPF_JMP | BPF_JEQ | BPF_K, 2 /* NETLINK_USERSOCK */, T_NEXT, T_ALLOW);
        emit_errno(b, EPROTONOSUPPORT);
        b->filter->code[other].jf = (uint8_t)(last + 1 - other);
    }
    if (wanted & NETLESS_RULE_UNIX_STRICT) {
        emit(b, BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, T_NEXT, T_NEXT);
        b->filter->code[b->filter->length - 1].jf = 1;
        emit_errno(b, EACCES);
    }
    emit_errno(b, EAFNOSUPPORT);

    place(b, T_SOCKETPAIR);
    if (wanted & NETLESS_RULE_UNIX_STRICT) {        /* a datagram pair can send to any path */
        emit_load_argument(b, 1);
        emit(b, BPF_ALU | BPF_AND | BPF_K, 0xf /* SOCK_TYPE_MASK */, T_NEXT, T_NEXT);
        emit_equal(b, SOCK_STREAM, T_ALLOW, T_NEXT);
        emit_equal(b, SOCK_SEQPACKET, T_ALLOW, T_NEXT);
        emit_errno(b, EACCES);
    }
}

static void emit_ends(struct builder *b, int wanted)
{
    place(b, T_IOCTL);
    emit_load_argument(b, 1);
    emit_equal(b, TIOCSTI, T_EPERM, T_NEXT);
    if (wanted & NETLESS_RULE_BARE) {               /* a tun device that the user owns */
        emit_equal(b, TUN_ATTACH, T_EPERM, T_NEXT);
        emit_equal(b, TUN_ATTACH_PPC, T_EPERM, T_NEXT);
    }
    emit_equal(b, 0x541c /* TIOCLINUX */, T_EPERM, T_NEXT);
    place(b, T_ALLOW);
    emit_return(b, SECCOMP_RET_ALLOW);
    place(b, T_ENOSYS);
    emit_errno(b, ENOSYS);
    place(b, T_EPERM);
    emit_errno(b, EPERM);
}

static void resolve(struct builder *b)
{
    for (unsigned int at = 0; at < b->filter->length; at++) {
        struct netless_instruction *code = &b->filter->code[at];
        if (b->jump_true[at] != T_NEXT)
            code->jt = (uint8_t)(b->place[b->jump_true[at]] - at - 1);
        if (b->jump_false[at] != T_NEXT)
            code->jf = (uint8_t)(b->place[b->jump_false[at]] - at - 1);
    }
}

static const struct architecture *find_architecture(uint32_t audit)
{
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (architectures[i].audit == audit)
            return &architectures[i];
    return NULL;
}

void netless_filter_build(uint32_t architecture, int rules, struct netless_filter *filter)
{
    const struct architecture *native = find_architecture(architecture);
    struct builder b;

    memset(filter, 0, sizeof *filter);
    if (native == NULL)
        return;
    memset(&b, 0, sizeof b);
    b.filter = filter;
    b.big_endian = native->big_endian;
    emit_load(&b, offsetof(struct seccomp_data, arch));
    emit_architecture(&b, native, rules, 0);
    if (native->compat != 0)
        emit_architecture(&b, find_architecture(native->compat), rules, 1);
    emit_errno(&b, ENOSYS);     /* an architecture that is not known */
    emit_socket_checks(&b, rules);
    emit_ends(&b, rules);
    resolve(&b);
}

uint32_t netless_native_architecture(void)
{
    return NETLESS_ARCHITECTURE;
}

/* ---- what the kernel offers ---- */

int netless_landlock_abi(void)
{
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_VERSION_FLAG);
    return abi < 0 ? 0 : (int)abi;
}

static int has_seccomp(void)
{
    return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
}

/* Powers over processes, devices or the kernel that would undo a filter without a namespace. */
int netless_has_root_powers(void)
{
    return netless_has_capability(1 << CAP_NET_ADMIN | 1 << CAP_SYS_MODULE | 1 << CAP_SYS_RAWIO |
                                  1 << CAP_SYS_PTRACE | 1 << CAP_SYS_ADMIN |
                                  1ULL << 38 | 1ULL << 39 | 1ULL << 40);
}

/* Sockets by path are Landlock's from ABI 9 on, where sockets among the child's
   own processes go on working; before that seccomp refuses nearly all of them.
   Its TCP rights would shut loopback=True too, so only without a namespace. */
static void plan_landlock(struct netless_plan *plan, int abi)
{
    plan->landlock_scoped = abi >= 6 ? LANDLOCK_SCOPE_ABSTRACT_UNIX : 0;
    plan->landlock_net = plan->way == NETLESS_WAY_FILTER && abi >= 4 ? LANDLOCK_BIND_AND_CONNECT_TCP
                                                                     : 0;
    plan->landlock_fs = !plan->unix_sockets && abi >= 9
                            ? LANDLOCK_FS_RESOLVE_UNIX | LANDLOCK_FS_REFER
                            : 0;
    if (plan->landlock_scoped || plan->landlock_net)
        plan->layers |= NETLESS_LAYER_LANDLOCK;
}

void netless_plan_seal(struct netless_plan *plan)
{
    int bare = plan->way == NETLESS_WAY_FILTER;

    plan->layers = bare ? 0 : NETLESS_LAYER_BOUNDING_SET;
    plan_landlock(plan, netless_landlock_abi());
    netless_filter_build(netless_native_architecture(),
                         (!plan->unix_sockets && !plan->landlock_fs ? NETLESS_RULE_UNIX_STRICT : 0) |
                             (bare ? NETLESS_RULE_BARE : 0),
                         &plan->filter);
    if (plan->filter.length > 0 && has_seccomp())
        plan->layers |= NETLESS_LAYER_SECCOMP;
    /* Real root's children keep set-uid programs, as under subprocess. */
    if (bare || !plan->sealed.whole_map)
        plan->layers |= NETLESS_LAYER_NO_NEW_PRIVS;
}

/* ---- the child's part: async-signal-safe ---- */

static int set_no_new_privs(const struct netless_plan *plan)
{
    (void)plan;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

/* Renaming across directories is refused to every domain that handles files,
   unless it is allowed (landlock(7), LANDLOCK_ACCESS_FS_REFER): so it is, from "/". */
static int allow_refer(int ruleset)
{
    const struct { uint64_t allowed; int32_t parent; } __attribute__((packed))
        rule = {LANDLOCK_FS_REFER, open("/", O_PATH | O_CLOEXEC)};
    if (rule.parent < 0)
        return -1;
    long result = syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_PATH_BENEATH, &rule, 0);
    int error = errno;
    close(rule.parent);
    errno = error;
    return (int)result;
}

static int install_landlock(const struct netless_plan *plan)
{
    const struct { uint64_t fs, net, scoped; } attribute = {plan->landlock_fs, plan->landlock_net,
                                                            plan->landlock_scoped};
    size_t size = plan->landlock_scoped ? sizeof attribute
                                        : offsetof(__typeof__(attribute), scoped);
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attribute, size, 0);
    if (ruleset < 0)
        return -1;
    int result = plan->landlock_fs ? allow_refer(ruleset) : 0;
    if (result == 0)
        result = (int)syscall(SYS_landlock_restrict_self, ruleset, 0);
    int error = errno;
    close(ruleset);
    errno = error;
    return result;
}

static int install_filter(const struct netless_plan *plan)
{
    const struct sock_fprog program = {
        .len = (unsigned short)plan->filter.length,
        .filter = (struct sock_filter *)plan->filter.code,
    };
    long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW,
                          &program);
    if (result < 0 && errno == EINVAL)          /* before Linux 4.17 */
        result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    return (int)result;
}

static int shrink_bounding_set(const struct netless_plan *plan)
{
    (void)plan;
    for (size_t i = 0; i < sizeof dropped_capabilities / sizeof *dropped_capabilities; i++)
        if (prctl(PR_CAPBSET_DROP, dropped_capabilities[i], 0, 0, 0) < 0)
            return -1;
    return 0;
}

static int is_refusal(int error)
{
    return error == EPERM || error == EACCES || error == ENOSYS || error == EOPNOTSUPP ||
           error == EINVAL || error == E2BIG;
}

/* One layer: installed, or left out by a probe that may, or the end of this child. */
static int add_layer(const struct netless_plan *plan, struct netless_report *report,
                     enum netless_layer layer, enum netless_step step,
                     int (*install)(const struct netless_plan *plan))
{
    if (!(plan->layers & (int)layer))
        return 0;
    int result = install(plan);
    if (result < 0 && (errno == EPERM || errno == EACCES) &&
        (layer == NETLESS_LAYER_LANDLOCK || layer == NETLESS_LAYER_SECCOMP) &&
        set_no_new_privs(plan) == 0)            /* no CAP_SYS_ADMIN even inside */
        result = install(plan);
    if (result == 0)
        report->layers |= (int)layer;
    else if (!(plan->optional & (int)layer) || !is_refusal(errno))
        return netless_fail(report, step);
    return 0;
}

int netless_seal(const struct netless_plan *plan, struct netless_report *report)
{
    if (add_layer(plan, report, NETLESS_LAYER_NO_NEW_PRIVS, NETLESS_STEP_NO_NEW_PRIVS,
                  set_no_new_privs) < 0 ||
        add_layer(plan, report, NETLESS_LAYER_BOUNDING_SET, NETLESS_STEP_BOUNDING_SET,
                  shrink_bounding_set) < 0 ||
        add_layer(plan, report, NETLESS_LAYER_LANDLOCK, NETLESS_STEP_LANDLOCK,
                  install_landlock) < 0)
        return -1;
    /* Last: every system call after it costs a little more. */
    return add_layer(plan, report, NETLESS_LAYER_SECCOMP, NETLESS_STEP_SECCOMP, install_filter);
}

/* A process that stays what it is gets no smaller set from execve: it is taken here. */
int netless_drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    uint64_t kept = geteuid() == 0 ? ~(uint64_t)0 : 0;

    if (syscall(SYS_capget, &header, data) < 0)
        return -1;
    for (size_t i = 0; i < sizeof dropped_capabilities / sizeof *dropped_capabilities; i++)
        kept &= ~((uint64_t)1 << dropped_capabilities[i]);
    for (int i = 0; i < 2; i++) {
        data[i].permitted &= (uint32_t)(kept >> 32 * i);
        data[i].effective &= (uint32_t)(kept >> 32 * i);
        data[i].inheritable &= (uint32_t)(kept >> 32 * i);
    }
    return (int)syscall(SYS_capset, &header, data);
}
