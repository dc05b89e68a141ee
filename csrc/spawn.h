/*
 * The launch sequence of netless: everything between the clone and the execve.
 *
 * The part above the line "internal" is also the cffi declaration of the
 * extension (build.py reads it without the lines that begin with '#'), so it
 * holds plain declarations only.
 */
#ifndef NETLESS_SPAWN_H
#define NETLESS_SPAWN_H

#include <stdint.h>

/*
 * Every step of the launch sequence, in order.  A failure before
 * NETLESS_STEP_DESCRIPTORS means that isolation could not be had; from
 * NETLESS_STEP_STDIO on it means what the same failure means to subprocess.
 */
enum netless_step {
    NETLESS_STEP_NONE,
    NETLESS_STEP_UNSUPPORTED,
    NETLESS_STEP_STALE,         /* kept descriptors or credentials changed: plan anew */
    NETLESS_STEP_MEMORY,
    NETLESS_STEP_CHANNEL,       /* the socket pair between parent and child */
    NETLESS_STEP_CLONE,
    NETLESS_STEP_UNSHARE,       /* unshare(CLONE_NEWUSER | CLONE_NEWNET) */
    NETLESS_STEP_PROC,          /* /proc does not show the process to itself */
    NETLESS_STEP_SETGROUPS,
    NETLESS_STEP_UID_MAP,
    NETLESS_STEP_GID_MAP,
    NETLESS_STEP_OPEN_NAMESPACE,
    NETLESS_STEP_SETNS_USER,
    NETLESS_STEP_SETNS_NET,
    NETLESS_STEP_UNSHARE_NET,
    NETLESS_STEP_VERIFY_NET,    /* the proof that the network namespace is the right one */
    NETLESS_STEP_VERIFY_USER,   /* ... and the user namespace not the caller's */
    NETLESS_STEP_LOOPBACK,
    NETLESS_STEP_NO_NEW_PRIVS,
    NETLESS_STEP_BOUNDING_SET,
    NETLESS_STEP_LANDLOCK,
    NETLESS_STEP_VERIFY_LANDLOCK,   /* what only the child's own domain refuses */
    NETLESS_STEP_SECCOMP,
    NETLESS_STEP_VERIFY_SECCOMP,    /* the answer that only the child's own filter gives */
    NETLESS_STEP_CAPABILITIES,  /* of a process that goes on without execve */
    NETLESS_STEP_SANDBOX_INIT,  /* macOS */
    NETLESS_STEP_DESCRIPTORS,   /* a descriptor the child must not inherit */
    NETLESS_STEP_STDIO,
    NETLESS_STEP_CWD,
    NETLESS_STEP_UMASK,
    NETLESS_STEP_SESSION,
    NETLESS_STEP_PROCESS_GROUP,
    NETLESS_STEP_GROUPS,
    NETLESS_STEP_GID,
    NETLESS_STEP_UID,
    NETLESS_STEP_SIGNALS,
    NETLESS_STEP_PREEXEC,
    NETLESS_STEP_CLOSE_FDS,
    NETLESS_STEP_EXEC
};

/* How a child comes into a namespace without network. */
enum netless_way {
    NETLESS_WAY_JOIN,           /* setns into the sealed namespace */
    NETLESS_WAY_JOIN_PRIVATE,   /* setns into its user namespace, unshare the network */
    NETLESS_WAY_MAKE,           /* a user and network namespace for this child alone */
    NETLESS_WAY_FILTER          /* no namespace: seccomp and Landlock only */
};

/* The layers of the seal, as bits. */
enum netless_layer {
    NETLESS_LAYER_NO_NEW_PRIVS = 1,
    NETLESS_LAYER_LANDLOCK = 2,
    NETLESS_LAYER_SECCOMP = 4,
    NETLESS_LAYER_BOUNDING_SET = 8
};

/* What the seccomp filter refuses beyond the common set, as bits. */
enum netless_rule {
    NETLESS_RULE_UNIX_STRICT = 1,   /* no AF_UNIX socket that could lead outside */
    NETLESS_RULE_BARE = 2           /* no namespace around it: AF_UNIX is the only family; no
                                       tun device, ptrace, process_vm_*, pidfd_getfd, kcmp, setns */
};

/* What the descriptor check found. */
enum netless_kind {
    NETLESS_KIND_FINE,
    NETLESS_KIND_SOCKET,
    NETLESS_KIND_DEVICE,
    NETLESS_KIND_NAMESPACE,
    NETLESS_KIND_PIDFD,
    NETLESS_KIND_PROC,
    NETLESS_KIND_ANONYMOUS,     /* io_uring, userfaultfd, bpf, perf, kvm, ... */
    NETLESS_KIND_UNKNOWN
};

/* How a child's network namespace was proved to be the right one (proof.c). */
enum netless_proof {
    NETLESS_PROOF_NONE,
    NETLESS_PROOF_COOKIE,       /* SO_NETNS_COOKIE */
    NETLESS_PROOF_ID,           /* NS_GET_ID of a handle */
    NETLESS_PROOF_CONTENTS      /* its inode number, and that it holds nothing */
};

/* A namespace and the handle to it. */
struct netless_identity {
    uint64_t device;
    uint64_t inode;
    uint64_t opened;            /* when the handle's inode came into being, in nanoseconds */
    uint64_t id;                /* of a network namespace, never used twice; 0: not known */
};

/* The capabilities of a process, and which of them execve could give it. */
struct netless_powers {
    uint64_t permitted;
    uint64_t effective;
    uint64_t inheritable;
    uint64_t bounding;
    int securebits;
    int no_new_privs;
    uint64_t after_execve;      /* what an unisolated child could come to hold */
};

/* What came of a launch: shared memory, or one message over the channel. */
struct netless_report {
    int step;                   /* enum netless_step, NETLESS_STEP_NONE when all went well */
    int error;                  /* errno of that step */
    int fd;                     /* NETLESS_STEP_DESCRIPTORS: which one, */
    int kind;                   /* ... enum netless_kind, */
    int family;                 /* ... and its address family when it is a socket */
    int layers;                 /* enum netless_layer bits that were installed */
    int unproved;               /* of these, the ones that nothing here can prove */
    int proof;                  /* enum netless_proof */
    int proc_pid;               /* the child's pid as /proc shows it */
    uint64_t network_id;        /* of the namespace that it made; 0: not known */
    char detail[192];           /* NETLESS_STEP_SANDBOX_INIT: what it said */
};

/* A user namespace and an empty network namespace, kept by two descriptors. */
struct netless_namespace {
    int user_fd;
    int net_fd;
    struct netless_identity user;
    struct netless_identity net;
    int whole_map;              /* every id the caller sees is mapped, 1:1 */
    unsigned int euid;          /* who made it */
    unsigned int egid;
};

/* One BPF instruction, as the kernel's struct sock_filter. */
struct netless_instruction {
    uint16_t code;
    uint8_t jt;
    uint8_t jf;
    uint32_t k;
};

struct netless_filter {
    unsigned int length;
    struct netless_instruction code[192];
};

/* What is the same for every child of one Isolation. Not written after it is made. */
struct netless_plan {
    int way;                    /* enum netless_way */
    int loopback;
    int map_root;
    int inherit_sockets;
    int unix_sockets;
    int layers;                 /* enum netless_layer bits that must hold */
    int optional;               /* of these, the ones that may be refused (probe only) */
    int unproved;               /* as the probe found: nothing is claimed of them */
    int required;               /* what was asked for by name, whether it is in layers or not */
    uint64_t landlock_fs;       /* handled_access_fs */
    uint64_t landlock_net;      /* handled_access_net */
    uint64_t landlock_scoped;
    int paths_by_landlock;      /* sockets by path are refused by it, not by the filter */
    int is_single;              /* for one launch: nothing is tried that costs as much as that */
    int may_be_root;            /* uid 0 is inside: execve gives it capabilities */
    struct netless_powers powers;   /* of the caller, when the plan was made */
    struct netless_namespace sealed;
    struct netless_filter filter;
    const char *profile;        /* macOS: text of the sandbox profile */
    int time_limit;             /* macOS: milliseconds that a child has to isolate itself */
};

/* One child. Strings are NUL-separated; descriptors are -1 where there is none. */
struct netless_request {
    const char *argv;
    int argc;
    const char *env;            /* with has_env; otherwise environ_copy is used */
    int env_count;
    int has_env;                /* 0: the caller's own environment */
    char **environ_copy;        /* in place of env; freed by the launch */
    const char *candidates;     /* paths to try, in order */
    int candidate_count;
    const char *cwd;
    int stdio[3];               /* the child's 0, 1, 2 */
    int parent_ends[3];
    const int *keep;            /* pass_fds, sorted */
    int keep_count;
    int close_fds;
    int restore_signals;
    int new_session;
    int process_group;          /* -1: none */
    int umask;                  /* -1: none */
    int has_groups;
    const unsigned int *groups;
    int group_count;
    int has_gid;
    unsigned int gid;
    int has_uid;
    unsigned int uid;
    int probe;                  /* stop where execve would be */
    int stays;                  /* netless_fork: no execve follows */
    int has_no_handlers;        /* netless_exec: the caller never set a signal handler */
    struct netless_report report;
};

/* The version that the extension was built as; defined by build.py. */
const char *netless_version(void);

/* How this platform isolates: "namespace", "seatbelt", or "" where it cannot. */
const char *netless_mechanism(void);

/* Makes the shared namespace. 0, or -1 with the report filled in. */
int netless_namespace_make(int map_root, struct netless_namespace *made,
                           struct netless_report *report);
/* The same, sooner, for a process of one thread. Where that fails, netless_namespace_make. */
int netless_namespace_make_alone(int map_root, struct netless_namespace *made,
                                 struct netless_report *report);
/* Closes its descriptors, unless something else took their numbers. */
void netless_namespace_close(struct netless_namespace *sealed);

/* Fills in layers, Landlock attribute, filter and powers for what this kernel offers. */
void netless_plan_seal(struct netless_plan *plan);
/* The filter for one architecture (AUDIT_ARCH_*), or length 0. */
void netless_filter_build(uint32_t architecture, int rules, struct netless_filter *filter);
uint32_t netless_native_architecture(void);
int netless_landlock_abi(void);

/* Does the caller hold, or can it take back, a capability that no filter holds back? */
int netless_has_root_powers(void);
/* Is mount(2) refused even in a mount namespace of its own, as to all in a Landlock file
   domain?  Tried in a child; without one, where who enters such a domain is told otherwise. */
int netless_is_mount_refused(int without_child);
/* enum netless_kind of a descriptor; for a socket its address family as well, else -1. */
int netless_classify(int fd, int unix_sockets, int *family);
/* Can the plan's kept namespace be joined by this caller, as it was made?  For a launch the
   first half is enough: what the handles lead to is proved by the child. */
int netless_is_callers(const struct netless_plan *plan);
int netless_is_fresh(const struct netless_plan *plan);

/* Starts a child: its pid, or -1 with the report filled in. */
int netless_spawn(const struct netless_plan *plan, struct netless_request *request);
/* The same for a thread of the interpreter: with a copy of the environment, where none is given. */
int netless_popen(const struct netless_plan *plan, struct netless_request *request);
/* Puts a Python function into the extension that does all that in one call: 0, or -1. */
int netless_add_spawn(void);
/* The errno of unshare(flags) in a child that does nothing else; for diagnosis only. */
int netless_try_unshare(int flags);
/* Isolates the calling process: 0, or -1 with the report filled in. */
int netless_isolate(const struct netless_plan *plan, struct netless_report *report);
/* Isolates the calling process and executes; comes back on failure only. */
int netless_exec(const struct netless_plan *plan, struct netless_request *request);

/*
 * The slow path, for preexec_fn and workers: begin; fork, with the interpreter's lock held;
 * then in the child finish or fail (a child that stays needs neither), in the parent wait;
 * and in the end discard.  Each launch is its own, so that one may begin inside another (an
 * at-fork hook, a signal handler), and may be discarded at any step: a child whose outcome
 * nobody waited for is killed and reaped.
 */
struct netless_launch;
struct netless_handle {
    struct netless_launch *launch;      /* NULL: none, or discarded */
};
int netless_fork_begin(struct netless_handle *handle, const struct netless_plan *plan,
                       struct netless_request *request);
int netless_fork(struct netless_handle *handle);    /* the pid, 0 in the isolated child, -1 */
int netless_fork_wait(struct netless_handle *handle);   /* 0, -1, or 1: a signal came, go on */
void netless_fork_finish(struct netless_handle *handle);
void netless_fork_fail(struct netless_handle *handle, int error);
void netless_fork_discard(struct netless_handle *handle);

/* internal */

#if defined(__linux__) || defined(__APPLE__)

#include <fcntl.h>
#include <signal.h>
#include <sys/types.h>

/* What a launch needs besides plan and request; made before the clone. */
struct netless_launch {
    const struct netless_plan *plan;
    struct netless_request *request;
    char **argv;
    char **envp;
    char **candidates;
    void *memory;
    int *keep;                  /* request->keep and the channel, sorted */
    int keep_count;
    sigset_t mask;              /* the caller's */
    int has_no_handlers;        /* the clone left the caller's signal handlers behind */
    int in_place;               /* the caller itself becomes the program: no clone */
    int channel[2];             /* parent's and child's end; -1 where there is none */
    struct netless_report *page;    /* shared with a child that has a copy of the memory */
    pid_t pid;                  /* of the child, as long as its outcome is not known */
    pid_t parent;               /* whose launch it is: not that of a copy of the parent */
    struct netless_launch *next;    /* of those with a channel */
};

/* How a child has its parent's memory. */
enum netless_memory {
    NETLESS_MEMORY_SHARED,      /* the very same, and the parent sleeps */
    NETLESS_MEMORY_COPIED,      /* a copy, and the parent sleeps */
    NETLESS_MEMORY_OWN          /* a copy, and a channel to the parent, which goes on */
};

/* Records a failed step; always -1. */
int netless_fail(struct netless_report *report, enum netless_step step);
#define NETLESS_TRY(report, step, call)                 \
    do {                                                \
        if ((call) < 0)                                 \
            return netless_fail((report), (step));      \
    } while (0)

/* spawn.c, fork.c */
int netless_number(const char *text);
int netless_above_stdio(int fd);
char **netless_duplicate(char **variables);
void netless_block_signals(sigset_t *before);
void netless_restore_signals(const sigset_t *before);
pid_t netless_fork_isolated(struct netless_launch *launch);
int netless_prepare(struct netless_launch *launch);
void netless_discard(struct netless_launch *launch);
int netless_prepare_child(struct netless_launch *launch);
int netless_settle_child(struct netless_launch *launch);
int netless_execute(struct netless_launch *launch);
_Noreturn void netless_give_up(struct netless_launch *launch);
int netless_take_outcome(struct netless_launch *launch);

/* channels.c: of launches that are under way at the same time */
int netless_open_channel(struct netless_launch *launch);
void netless_close_channel(struct netless_launch *launch, int end);
void netless_close_others_channels(const struct netless_launch *own);
void netless_before_fork(void);
void netless_after_fork(pid_t pid);

/*
 * What spawn.c asks of the platform: linux.c, proof.c, seal.c and descriptors.c, or macos.c.
 */

enum netless_memory netless_memory_of(const struct netless_launch *launch);
/* Runs function(launch) in a new process, with memory as netless_memory_of says. */
pid_t netless_start(int (*function)(void *), struct netless_launch *launch);
/* The wait status; -1 where it cannot be had. */
int netless_reap(pid_t pid);
/* sigprocmask(SIG_SETMASK) for the calling thread alone. */
int netless_set_mask(const sigset_t *mask, sigset_t *before);
char **netless_environ(void);

/* A way for reports from channel[1] to channel[0], closed by execve, not among 0, 1, 2. */
int netless_channel(int channel[2]);
/* -1, or the size of what came: 0 when the other end is closed. */
ssize_t netless_send(int channel, const struct netless_report *report);
ssize_t netless_receive(int channel, struct netless_report *report);

/* The child's isolation, and what the parent has to do for it when there is a channel;
   `before`: the child's powers until then. */
int netless_isolate_child(struct netless_launch *launch, struct netless_powers *before);
int netless_meet_child(struct netless_launch *launch, pid_t pid);

/* Takes from an isolated process that goes on without execve what execve would take, and
   what the caller did not have. */
int netless_drop_capabilities(const struct netless_powers *before);
/* The child's groups and ids. */
int netless_take_ids(const struct netless_request *request, struct netless_report *report);

/* Calls visit for every open descriptor above 2, until one call is not 0. */
int netless_each_descriptor(struct netless_launch *launch,
                            int (*visit)(struct netless_launch *launch, int fd));
/* Closes all above 2 but launch->keep, in few system calls; -1 where there is no such way. */
int netless_close_ranges(const struct netless_launch *launch);

/* Linux only: between linux.c, proof.c, seal.c and descriptors.c. */
void netless_number_text(char *end, int number);    /* in decimal, as snprintf, but async-signal-safe */
int netless_control_socket(void);
int netless_identify(int fd, struct netless_identity *identity);
int netless_is_still(int fd, const struct netless_identity *expected);
uint64_t netless_handle_id(int fd);
uint64_t netless_own_network_id(void);
int netless_own_network(struct netless_identity *own);
int netless_verify_network(const struct netless_identity *wanted,
                           const struct netless_identity *outside, struct netless_report *report);
int netless_verify_user(int net_fd, struct netless_report *report);
int netless_has_capability(uint64_t any_of);
void netless_read_powers(const struct netless_plan *plan, struct netless_powers *powers);
int netless_seal(const struct netless_plan *plan, const struct netless_powers *before,
                 int is_probe, struct netless_report *report);

#endif
#endif
