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
#include <linux/securebits.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
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

#define CAPABILITY(name) ((uint64_t)1 << (name))
#define ALL_CAPABILITIES (~(uint64_t)0)

/* The capabilities that work inside a user namespace and would undo the seal there, or its
   use by others (SYS_RESOURCE: the namespace's own limits in /proc/sys/user).
   Others (SYS_MODULE, SYS_RAWIO, BPF, ...) are checked against the initial one. */
#define DROPPED (CAPABILITY(CAP_NET_ADMIN) | CAPABILITY(CAP_NET_RAW) |              \
                 CAPABILITY(CAP_SYS_PTRACE) | CAPABILITY(CAP_SYS_ADMIN) |           \
                 CAPABILITY(CAP_SYS_RESOURCE))

/* What a caller of the filter mechanism may hold: what Docker leaves to uid 0, which gives
   power over files and ids and none over devices, the kernel or other processes' memory.
   MKNOD opens disks, so it is dropped from what the child is given. */
#define HARMLESS (CAPABILITY(CAP_CHOWN) | CAPABILITY(CAP_DAC_OVERRIDE) |            \
                  CAPABILITY(CAP_FSETID) | CAPABILITY(CAP_FOWNER) |                 \
                  CAPABILITY(CAP_NET_RAW) | CAPABILITY(CAP_SETGID) |                \
                  CAPABILITY(CAP_SETUID) | CAPABILITY(CAP_SETFCAP) |                \
                  CAPABILITY(CAP_SETPCAP) | CAPABILITY(CAP_NET_BIND_SERVICE) |      \
                  CAPABILITY(CAP_SYS_CHROOT) | CAPABILITY(CAP_KILL) |               \
                  CAPABILITY(CAP_AUDIT_WRITE))

/* A request that no device has, and what no other filter or device answers to it. */
#define PROOF_REQUEST 0x6e6c7072
#define PROOF_ERRNO 2817

/* TUNSETIFF, as most machines and as PowerPC number it. */
#define TUN_ATTACH 0x400454ca
#define TUN_ATTACH_PPC 0x800454ca

/* ---- the filter ---- */

/* Where a rule leads. Each is a piece of code at the end of the program. */
enum target { T_NEXT, T_ALLOW, T_ENOSYS, T_EPERM, T_PROOF, T_SOCKET, T_SOCKETPAIR, T_IOCTL, T_COUNT };

struct architecture {
    uint32_t audit, compat;
    int socket, socketpair, socketcall, first_key, ioctl, ptrace, setns;
    int vm_readv, vm_writev, kcmp;
    uint32_t foreign;           /* x32: numbers from here on; 0: none */
    int big_endian;
};

static const struct architecture architectures[] = {
    {AUDIT_ARCH_X86_64, AUDIT_ARCH_I386, 41, 53, -1, 248, 16, 101, 308, 310, 311, 312, 0x40000000, 0},
    {AUDIT_ARCH_I386, AUDIT_ARCH_X86_64, 359, 360, 102, 286, 54, 26, 346, 347, 348, 349, 0, 0},
    {AUDIT_ARCH_AARCH64, AUDIT_ARCH_ARM, 198, 199, -1, 217, 29, 117, 268, 270, 271, 272, 0, 0},
    {AUDIT_ARCH_ARM, AUDIT_ARCH_AARCH64, 281, 288, 102, 309, 54, 26, 375, 376, 377, 378, 0, 0},
    {AUDIT_ARCH_RISCV64, 0, 198, 199, -1, 217, 29, 117, 268, 270, 271, 272, 0, 0},
    {AUDIT_ARCH_LOONGARCH64, 0, 198, 199, -1, 217, 29, 117, 268, 270, 271, 272, 0, 0},
    {AUDIT_ARCH_PPC64LE, 0, 326, 333, 102, 269, 54, 26, 350, 351, 352, 354, 0, 0},
    {AUDIT_ARCH_S390X, 0, 359, 360, 102, 278, 54, 26, 339, 340, 341, 343, 0, 1},
};

enum { IO_URING_FIRST = 425, IO_URING_LAST = 427, PIDFD_GETFD = 438, MOST_RULES = 16,
       MOST_INSTRUCTIONS = sizeof ((struct netless_filter *)0)->code / sizeof(struct netless_instruction) };

struct rule {
    uint32_t first, last;
    enum target target;
};

struct builder {
    struct netless_filter *filter;
    uint8_t jump_true[MOST_INSTRUCTIONS];   /* enum target of each instruction, T_NEXT: none */
    uint8_t jump_false[MOST_INSTRUCTIONS];
    unsigned int place[T_COUNT];
    int big_endian;
    int is_too_long;            /* more rules or instructions than there is room for */
};

static unsigned int emit(struct builder *b, uint16_t code, uint32_t k, enum target on_true,
                         enum target on_false)
{
    unsigned int at = b->filter->length;
    if (at + 1 < MOST_INSTRUCTIONS)     /* the last place is for what is too much */
        b->filter->length++;
    else
        b->is_too_long = 1;
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

/* Keeps the list sorted; a system call that does not exist there has number -1.  A list
   that is full stays one over, which is found out when it is used. */
static void add_rule(struct rule *rules, int *count, int first, int last, enum target target)
{
    int at = *count;
    if (first < 0 || at > MOST_RULES)
        return;
    if (at == MOST_RULES) {
        ++*count;
        return;
    }
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
    add_rule(rules, &count, a->socketpair, a->socketpair,
             wanted & NETLESS_RULE_UNIX_STRICT ? T_SOCKETPAIR : T_SOCKET);
    if (wanted & NETLESS_RULE_BARE) {
        const int traces[] = {a->ptrace, a->setns, a->vm_readv, a->vm_writev, a->kcmp, PIDFD_GETFD};
        for (size_t i = 0; i < sizeof traces / sizeof *traces; i++)
            add_rule(rules, &count, traces[i], traces[i], T_EPERM);
    }
    if (a->foreign != 0)
        add_rule(rules, &count, (int)a->foreign, -1, T_ENOSYS);
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
    if (count > MOST_RULES) {
        b->is_too_long = 1;
        return;
    }
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

    if (!(wanted & NETLESS_RULE_UNIX_STRICT))       /* pairs are sockets like others, then */
        return;
    place(b, T_SOCKETPAIR);
    emit_load_argument(b, 0);
    emit_equal(b, AF_UNIX, T_NEXT, T_NEXT);
    unsigned int test = b->filter->length - 1;
    emit_load_argument(b, 1);                       /* a datagram pair can send to any path */
    emit(b, BPF_ALU | BPF_AND | BPF_K, 0xf /* SOCK_TYPE_MASK */, T_NEXT, T_NEXT);
    emit_equal(b, SOCK_STREAM, T_ALLOW, T_NEXT);
    emit_equal(b, SOCK_SEQPACKET, T_ALLOW, T_NEXT);
    emit_errno(b, EACCES);
    b->filter->code[test].jf = (uint8_t)(b->filter->length - test - 1);
    emit_errno(b, EAFNOSUPPORT);
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
    emit_equal(b, PROOF_REQUEST, T_PROOF, T_NEXT);
    place(b, T_ALLOW);
    emit_return(b, SECCOMP_RET_ALLOW);
    place(b, T_ENOSYS);
    emit_errno(b, ENOSYS);
    place(b, T_EPERM);
    emit_errno(b, EPERM);
    place(b, T_PROOF);
    emit_errno(b, PROOF_ERRNO);
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
    if (b.is_too_long)          /* no filter is better than half of one: it is missed */
        filter->length = 0;
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

/* ---- the caller's powers ---- */

static int read_sets(struct netless_powers *powers)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];

    memset(powers, 0, sizeof *powers);
    memset(data, 0, sizeof data);
    powers->securebits = prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);
    powers->no_new_privs = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    if (syscall(SYS_capget, &header, data) < 0)
        return -1;
    powers->permitted = data[0].permitted | (uint64_t)data[1].permitted << 32;
    powers->effective = data[0].effective | (uint64_t)data[1].effective << 32;
    powers->inheritable = data[0].inheritable | (uint64_t)data[1].inheritable << 32;
    return 0;
}

/* Bits that the kernel has no capability for count as there: nothing has to be dropped. */
static uint64_t bounding_set(void)
{
    uint64_t found = 0;

    for (int number = 0; number < 64; number++) {
        int is_there = prctl(PR_CAPBSET_READ, number, 0, 0, 0);
        if (is_there < 0)
            return number > CAP_AUDIT_READ ? found | ALL_CAPABILITIES << number : found;
        found |= (uint64_t)(is_there == 1) << number;
    }
    return found;
}

static uint64_t ambient_set(uint64_t possible)
{
    uint64_t found = 0;

    for (int number = 0; possible >> number != 0 && number < 63; number++)
        if (possible & CAPABILITY(number) &&
            prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, number, 0, 0) == 1)
            found |= CAPABILITY(number);
    return found;
}

/* capabilities(7), "Transformation of capabilities during execve", for uid 0. */
static void read_all(struct netless_powers *powers)
{
    if (read_sets(powers) < 0)
        return;                         /* nothing at all, then */
    powers->bounding = bounding_set();
    powers->after_execve = powers->securebits & SECBIT_NOROOT
                               ? ambient_set(powers->permitted & powers->inheritable)
                               : powers->bounding | powers->inheritable;
    if (powers->no_new_privs)
        powers->after_execve &= powers->permitted;
}

/* In this child alone: capset takes no inheritable set that goes beyond the bounding set
   (security/commoncap.c), so one call tells whether that has shrunk since.  Entering a
   user namespace empties the inheritable set again. */
static int is_bounding_set_still(const struct netless_powers *known)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];

    if (!(known->permitted & CAPABILITY(CAP_SETPCAP)))
        return 1;                       /* nothing could have been dropped */
    if (!(known->effective & CAPABILITY(CAP_SETPCAP)))
        return 0;                       /* the call would look at other sets as well */
    for (int i = 0; i < 2; i++)
        data[i] = (struct __user_cap_data_struct){
            .permitted = (uint32_t)(known->permitted >> 32 * i),
            .effective = (uint32_t)(known->effective >> 32 * i),
            .inheritable = (uint32_t)(known->bounding >> 32 * i),
        };
    return syscall(SYS_capset, &header, data) == 0;
}

/* What a child must not get more of by entering a user namespace, which gives everything
   back.  Read by the child before that, in few calls where nothing has changed since. */
void netless_read_powers(const struct netless_plan *plan, struct netless_powers *powers)
{
    const struct netless_powers *known = &plan->powers;

    *powers = (struct netless_powers){.permitted = ALL_CAPABILITIES, .effective = ALL_CAPABILITIES,
                                      .after_execve = ALL_CAPABILITIES};
    if (!plan->may_be_root)
        return;
    if (read_sets(powers) == 0 && powers->permitted == known->permitted &&
        powers->effective == known->effective && powers->inheritable == known->inheritable &&
        powers->securebits == known->securebits && powers->no_new_privs == known->no_new_privs &&
        is_bounding_set_still(known))
        *powers = *known;
    else
        read_all(powers);
}

/* The process goes on with what it had: what it can take back counts as held. */
int netless_has_root_powers(void)
{
    struct netless_powers powers;
    uid_t real, effective, saved;

    if (read_sets(&powers) < 0 || getresuid(&real, &effective, &saved) < 0)
        return 1;
    uint64_t held = powers.permitted | powers.effective | powers.inheritable;
    if (held & ~(HARMLESS | CAPABILITY(CAP_MKNOD)))
        return 1;
    if (!(held & CAPABILITY(CAP_MKNOD)))
        return 0;
    return real != 0 || effective != 0 || saved != 0 ||
           powers.inheritable & CAPABILITY(CAP_MKNOD) ||
           !(powers.effective & CAPABILITY(CAP_SETPCAP));
}

/* ---- the plan ---- */

/* Sockets by path are Landlock's from ABI 9 on, where sockets among the child's
   own processes go on working; before that seccomp refuses nearly all of them.
   Its TCP rights would shut loopback=True too, so only without a namespace.

   A domain that handles no file right refuses every rename and link across directories as
   soon as another one around it handles files (landlock(7), LANDLOCK_ACCESS_FS_REFER), and
   one that handles any file right refuses every mount(2).  So files are handled, and that
   one right granted, where mount is refused in any case: in a caller's file domain. */
static void plan_landlock(struct netless_plan *plan, int abi)
{
    plan->landlock_scoped = abi >= 6 ? LANDLOCK_SCOPE_ABSTRACT_UNIX : 0;
    plan->landlock_net = plan->way == NETLESS_WAY_FILTER && abi >= 4 ? LANDLOCK_BIND_AND_CONNECT_TCP
                                                                     : 0;
    plan->paths_by_landlock = !plan->unix_sockets && abi >= 9;
    plan->landlock_fs = plan->paths_by_landlock ? LANDLOCK_FS_RESOLVE_UNIX | LANDLOCK_FS_REFER : 0;
    if (!plan->landlock_scoped && !plan->landlock_net)
        return;
    plan->layers |= NETLESS_LAYER_LANDLOCK;
    if (!plan->landlock_fs && netless_is_mount_refused(plan->is_single))
        plan->landlock_fs = LANDLOCK_FS_REFER;
}

/* The caller's capabilities come back by entering a user namespace where uid 0, or a
   set-uid program of it, can be had inside. */
static void plan_powers(struct netless_plan *plan)
{
    int has_user_namespace = plan->way != NETLESS_WAY_FILTER;

    plan->may_be_root = has_user_namespace && (geteuid() == 0 || plan->sealed.whole_map ||
                                               netless_has_capability(CAPABILITY(CAP_SETUID)));
    if (plan->may_be_root)
        read_all(&plan->powers);
    if (has_user_namespace || netless_has_capability(CAPABILITY(CAP_MKNOD)))
        plan->layers |= NETLESS_LAYER_BOUNDING_SET;
}

void netless_plan_seal(struct netless_plan *plan)
{
    int bare = plan->way == NETLESS_WAY_FILTER;

    plan->layers = plan->required = 0;
    plan_powers(plan);
    plan_landlock(plan, netless_landlock_abi());
    netless_filter_build(
        netless_native_architecture(),
        (!plan->unix_sockets && !plan->paths_by_landlock ? NETLESS_RULE_UNIX_STRICT : 0) |
            (bare ? NETLESS_RULE_BARE : 0),
        &plan->filter);
    if (plan->filter.length > 0 && has_seccomp())
        plan->layers |= NETLESS_LAYER_SECCOMP;
    /* Real root's children keep set-uid programs, as under subprocess. */
    if (bare || !plan->sealed.whole_map)
        plan->layers |= NETLESS_LAYER_NO_NEW_PRIVS;
    if (!plan->unix_sockets)            /* asked for by name, so never left out */
        plan->required |= plan->paths_by_landlock ? NETLESS_LAYER_LANDLOCK : NETLESS_LAYER_SECCOMP;
    if (bare)
        plan->required |= NETLESS_LAYER_LANDLOCK | NETLESS_LAYER_SECCOMP | plan->layers;
    /* Where uid 0 is inside, its capabilities reach what others share with it, or what the
       caller had given up.  A namespace for each child may be one without any power. */
    int is_uncut = plan->way == NETLESS_WAY_MAKE && (!plan->may_be_root ||
                                                     (plan->powers.after_execve | DROPPED) ==
                                                         ALL_CAPABILITIES);
    if ((plan->may_be_root || plan->map_root) && !is_uncut)
        plan->required |= NETLESS_LAYER_BOUNDING_SET;
    plan->optional = plan->layers & ~plan->required;
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

/* From the bounding set, which execve goes by: what would undo the seal, and what the
   caller could not have handed on. */
static int shrink_bounding_set(const struct netless_plan *plan, const struct netless_powers *before)
{
    uint64_t kept = plan->way == NETLESS_WAY_FILTER ? ~CAPABILITY(CAP_MKNOD)
                                                    : before->after_execve & ~DROPPED;

    for (int number = 0; number < 64; number++) {
        if (kept & CAPABILITY(number))
            continue;
        if (prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0)
            return errno == EINVAL && number > CAP_AUDIT_READ ? 0 : -1;
    }
    return 0;
}

static int is_refusal(int error)
{
    return error == EPERM || error == EACCES || error == ENOSYS || error == EOPNOTSUPP ||
           error == EINVAL || error == E2BIG;
}

static int prove_bounding_set(void)
{
    for (int number = 0; number < 64; number++)
        if (DROPPED & CAPABILITY(number) && prctl(PR_CAPBSET_READ, number, 0, 0, 0) != 0)
            return 0;
    return 1;
}

/* Only this filter has such an answer; where filters around it refuse the same call, the
   one that was installed last has the word (seccomp(2), "the most recently added"). */
static int prove_filter(void)
{
    return syscall(SYS_ioctl, -1, PROOF_REQUEST, 0) < 0 && errno == PROOF_ERRNO;
}

/* An abstract AF_UNIX socket, or a TCP port where the domain has no scopes, of before the
   domain; -1 where there is no telling. */
struct outsider {
    int fd;
    struct sockaddr_un name;
    socklen_t size;
};

static int reaches(const struct outsider *it)
{
    int fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int result = fd < 0 ? -1 : (int)syscall(SYS_connect, fd, &it->name, it->size);
    int error = errno;

    if (fd >= 0)
        close(fd);
    errno = error;
    return result == 0;
}

/* One that is reached before the domain: a sandbox that refuses the attempt is no proof of it. */
static struct outsider make_outsider(const struct netless_plan *plan)
{
    struct outsider it = {.fd = -1, .name = {.sun_family = AF_UNIX}, .size = sizeof it.name};

    if (!plan->landlock_scoped)
        return it;
    it.fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (it.fd < 0 || syscall(SYS_bind, it.fd, &it.name, sizeof(sa_family_t)) < 0 ||
        syscall(SYS_getsockname, it.fd, &it.name, &it.size) < 0 || !reaches(&it)) {
        if (it.fd >= 0)
            close(it.fd);
        it.fd = -1;
    }
    return it;
}

/* What the new domain shuts off is what came before it: EPERM (Linux 6.12). */
static int prove_scope(const struct outsider *it)
{
    return !reaches(it) && errno == EPERM;
}

/* With TCP rights alone (before Linux 6.12) it is binding that is refused: EACCES.
   -1 where a sandbox refuses the socket, or that, already. */
static int prove_tcp(void)
{
    struct sockaddr_in nowhere = {.sin_family = AF_INET};
    int fd = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int result = fd < 0 ? -1 : (int)syscall(SYS_bind, fd, &nowhere, sizeof nowhere);
    int error = errno;

    if (fd >= 0)
        close(fd);
    errno = error;
    if (result == 0)
        return 0;
    return fd >= 0 && error == EACCES ? 1 : -1;
}

/* May this process look into its parent? Not from a domain that the parent is not in, and
   from another user namespace not in any case. */
static int sees_parent(void)
{
    char path[48], name[8];

    netless_number_text(stpcpy(path, "/proc/"), (int)syscall(SYS_getppid));
    strcat(path, "/ns/net");
    return readlink(path, name, sizeof name) > 0;
}

/* ---- the layers, in order ---- */

/* One layer's outcome: there, or left out by a probe that may, or the end of this child. */
static int settle_layer(const struct netless_plan *plan, struct netless_report *report,
                        enum netless_layer layer, enum netless_step step, int result)
{
    if (result == 0)
        report->layers |= (int)layer;
    else if (!(plan->optional & (int)layer) || !is_refusal(errno))
        return netless_fail(report, step);
    return 0;
}

/* No CAP_SYS_ADMIN even inside: once more with no_new_privs. */
static int insist(const struct netless_plan *plan, int (*install)(const struct netless_plan *plan))
{
    int result = install(plan);

    if (result < 0 && (errno == EPERM || errno == EACCES) && set_no_new_privs(plan) == 0)
        result = install(plan);
    return result;
}

/* 0 where a layer that says it is there is not: it does not count, or ends this child. */
static int require_proof(const struct netless_plan *plan, struct netless_report *report,
                         enum netless_layer layer, enum netless_step step, int is_proved)
{
    if (is_proved || !(report->layers & (int)layer))
        return 0;
    report->layers &= ~(int)layer;
    if (plan->optional & (int)layer)
        return 0;
    errno = EEXIST;
    return netless_fail(report, step);
}

/* 1, 0, or -1 where nothing here can tell. */
static int prove_domain(const struct netless_plan *plan, const struct outsider *it, int saw_parent)
{
    if (saw_parent)
        return !sees_parent();
    if (it->fd >= 0)
        return prove_scope(it);
    errno = EPERM;
    return plan->landlock_net ? prove_tcp() : -1;
}

/* What is static on a system is proved once, by the probe; the filter for every child, and
   the domain where nothing else keeps a child from other processes' memory. */
static int add_domain(const struct netless_plan *plan, int is_probe, struct netless_report *report)
{
    if (!(plan->layers & NETLESS_LAYER_LANDLOCK))
        return 0;
    int is_alone = plan->way == NETLESS_WAY_FILTER, proves = is_probe || is_alone;
    int saw_parent = is_alone && sees_parent();
    struct outsider it = proves && !saw_parent ? make_outsider(plan) : (struct outsider){.fd = -1};
    int result = settle_layer(plan, report, NETLESS_LAYER_LANDLOCK, NETLESS_STEP_LANDLOCK,
                              insist(plan, install_landlock));
    int proof = result == 0 && proves ? prove_domain(plan, &it, saw_parent) : 1, error = errno;
    if (it.fd >= 0)
        close(it.fd);
    errno = error;
    if (proof < 0 && is_alone && is_probe)
        return netless_fail(report, NETLESS_STEP_VERIFY_LANDLOCK);
    if (proof < 0)
        report->unproved |= report->layers & NETLESS_LAYER_LANDLOCK;
    if (result < 0 || proof != 0)
        return result;
    return require_proof(plan, report, NETLESS_LAYER_LANDLOCK, NETLESS_STEP_VERIFY_LANDLOCK, 0);
}

static int add_filter(const struct netless_plan *plan, struct netless_report *report)
{
    if (!(plan->layers & NETLESS_LAYER_SECCOMP))
        return 0;
    if (settle_layer(plan, report, NETLESS_LAYER_SECCOMP, NETLESS_STEP_SECCOMP,
                     insist(plan, install_filter)) < 0)
        return -1;
    return require_proof(plan, report, NETLESS_LAYER_SECCOMP, NETLESS_STEP_VERIFY_SECCOMP,
                         !(report->layers & NETLESS_LAYER_SECCOMP) || prove_filter());
}

int netless_seal(const struct netless_plan *plan, const struct netless_powers *before,
                 int is_probe, struct netless_report *report)
{
    if (plan->layers & NETLESS_LAYER_NO_NEW_PRIVS &&
        settle_layer(plan, report, NETLESS_LAYER_NO_NEW_PRIVS, NETLESS_STEP_NO_NEW_PRIVS,
                     set_no_new_privs(plan)) < 0)
        return -1;
    if (plan->layers & NETLESS_LAYER_BOUNDING_SET &&
        settle_layer(plan, report, NETLESS_LAYER_BOUNDING_SET, NETLESS_STEP_BOUNDING_SET,
                     shrink_bounding_set(plan, before)) < 0)
        return -1;
    if (is_probe && plan->way != NETLESS_WAY_FILTER &&
        require_proof(plan, report, NETLESS_LAYER_BOUNDING_SET, NETLESS_STEP_BOUNDING_SET,
                      prove_bounding_set()) < 0)
        return -1;
    if (add_domain(plan, is_probe, report) < 0)
        return -1;
    /* Last: every system call after it costs a little more. */
    return add_filter(plan, report);
}

/* A process that stays what it is gets no smaller set from execve: it is taken here. */
int netless_drop_capabilities(const struct netless_powers *before)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    uint64_t kept = geteuid() == 0 ? before->permitted & ~DROPPED : 0;

    if (syscall(SYS_capget, &header, data) < 0)
        return -1;
    for (int i = 0; i < 2; i++) {
        data[i].permitted &= (uint32_t)(kept >> 32 * i);
        data[i].effective &= (uint32_t)((kept & before->effective) >> 32 * i);
        data[i].inheritable &= (uint32_t)(kept >> 32 * i);
    }
    return (int)syscall(SYS_capset, &header, data);
}
