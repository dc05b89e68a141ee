/*
 * launch KIND [OPTION ...] -- PROGRAM [ARGUMENT ...]
 *
 * One child by the launch path of csrc/ itself, or by none of it (KIND "none").
 * The exit status is the program's; 100 when the launch failed, with
 * "failed:STEP:ERRNO" on stdout; 101 when this program is wrong.
 *
 *   --describe         print the settled plan as NAME=VALUE words, and start nothing; with "none",
 *                      the kernel's Landlock ABI
 *   --without-seal     the control of every layer: the same launch without any
 *   --fd NAME          let the child inherit such a descriptor, as number 7
 *   --sibling          start `attempt serve` with the same plan first; SIBLING among the
 *                      arguments stands for its pid
 *   --lie-make, --lie-launch
 *                      a kernel that says yes to a new network namespace and gives none; while the
 *                      plan is settled, or after that
 *   --lie-unshare, --lie-user
 *                      ... to unshare alone, or to entering the user namespace; after that
 *   --refuse CALL      a filter around this program refuses getsockopt or clone3
 *   --file-domain      this program is in a Landlock domain that handles files and allows all
 *   --foreign          once the plan is settled, another namespace takes the place of the kept
 *                      one: the handles' numbers and the inode's. lo is up there, and somebody
 *                      listens on 127.0.0.1, port 8001. With "none" the program is in there
 *   --thread           the launch is made by a thread with the smallest stack that there is
 *   --quit             right before execve the child gets SIGQUIT
 *   --confine NAME     whoever makes a user namespace changes to that AppArmor profile, as
 *                      on Ubuntu
 *   --enter NAME       this program runs in that AppArmor profile
 *   --ids              the child takes the ids it has anyway, by setresuid and setresgid
 *   --dumpable         exit 1 when the launch left this process another dumpable flag
 *   --attacked [--plain-attacker] [--empty]
 *                      right before execve, where the child still shares this process's memory,
 *                      a sibling (or a process that is not isolated) writes to it; the child has
 *                      emptied its permitted set. The exit status is then the attacker's: 0 when
 *                      it came through
 *
 * Linked with --wrap for unshare, setns and execve.
 */
#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <limits.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "around.h"
#include "opened.h"

enum { FAILED = 100, WRONG = 101, PASSED_FD = 7 };
enum lie { SETNS_NET = 1, SETNS_USER = 2, UNSHARE_NET = 4 };

struct options {
    const char *kind, *fd, *profile, *refused;
    char **program;
    int describe, without_seal, sibling, lie_make, lie_launch, lie_unshare, lie_user, ids,
        dumpable, attacked, plain_attacker, empty, file_domain, foreign, thread, quit;
};

static int lies, emptied, quits;
static struct netless_namespace foreign = {.user_fd = -1, .net_fd = -1};
static const char *confinement;
static char canary[5] = "safe";

/* Pipes to and from the sibling: where it hears of its victim, and where it says "ready". */
static int to_sibling[2] = {-1, -1}, from_sibling[2] = {-1, -1};
static int is_attacked;

/* ---- what stands between csrc/ and the kernel here ---- */

int __real_unshare(int flags);
int __wrap_unshare(int flags);
int __real_setns(int fd, int kind);
int __wrap_setns(int fd, int kind);
int __real_execve(const char *path, char *const argv[], char *const envp[]);
int __wrap_execve(const char *path, char *const argv[], char *const envp[]);

static int change_profile(const char *profile)
{
    char text[128];
    int fd = open("/proc/thread-self/attr/apparmor/current", O_WRONLY | O_CLOEXEC);
    int length = snprintf(text, sizeof text, "changeprofile %s", profile);
    ssize_t written = fd < 0 ? -1 : write(fd, text, (size_t)length);
    int error = errno;
    close(fd);
    errno = error;
    return written < 0 ? -1 : 0;
}

int __wrap_unshare(int flags)
{
    if (lies & UNSHARE_NET)
        flags &= ~CLONE_NEWNET;
    int result = flags == 0 ? 0 : __real_unshare(flags);
    return result == 0 && confinement != NULL && (flags & CLONE_NEWUSER)
               ? change_profile(confinement)
               : result;
}

int __wrap_setns(int fd, int kind)
{
    if (lies & SETNS_NET)
        kind &= ~CLONE_NEWNET;
    if (lies & SETNS_USER)
        kind &= ~CLONE_NEWUSER;
    return kind == 0 ? 0 : __real_setns(fd, kind);
}

int __wrap_execve(const char *path, char *const argv[], char *const envp[])
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};

    if (quits)
        kill(getpid(), SIGQUIT);
    if (emptied && syscall(SYS_capset, &header, none) < 0)
        return -1;
    if (is_attacked) {
        pid_t own = getpid();
        char byte;
        if (write(to_sibling[1], &own, sizeof own) != sizeof own ||
            read(from_sibling[0], &byte, 1) != 1)
            return -1;
    }
    return __real_execve(path, argv, envp);
}

/* ---- the plan ---- */

static const struct kind {
    const char *name;
    int way, loopback, map_root, no_unix;
} kinds[] = {
    {"shared", NETLESS_WAY_JOIN, 0, 0, 0},
    {"private", NETLESS_WAY_JOIN_PRIVATE, 0, 0, 0},
    {"loopback", NETLESS_WAY_JOIN_PRIVATE, 1, 0, 0},
    {"map-root", NETLESS_WAY_JOIN, 0, 1, 0},
    {"no-unix", NETLESS_WAY_JOIN, 0, 0, 1},
    {"make", NETLESS_WAY_MAKE, 0, 0, 0},
    {"make-loopback", NETLESS_WAY_MAKE, 1, 0, 0},
    {"filter", NETLESS_WAY_FILTER, 0, 0, 0},
    {"filter-no-unix", NETLESS_WAY_FILTER, 0, 0, 1},
};

static _Noreturn void wrong(const char *what)
{
    fprintf(stderr, "launch: %s: %s\n", what, strerror(errno));
    exit(WRONG);
}

static _Noreturn void failed(const struct netless_report *report)
{
    printf("failed:%d:%d\n", report->step, report->error);
    fflush(stdout);
    _exit(FAILED);
}

static void leave_alone(struct netless_request *request)
{
    request->process_group = request->umask = -1;
    for (int i = 0; i < 3; i++)
        request->stdio[i] = request->parent_ends[i] = -1;
}

static void draft(const struct options *options, struct netless_plan *plan)
{
    struct netless_report report = {.step = NETLESS_STEP_NONE};
    const struct kind *kind = kinds;

    while (kind < kinds + sizeof kinds / sizeof *kinds && strcmp(kind->name, options->kind) != 0)
        kind++;
    if (kind == kinds + sizeof kinds / sizeof *kinds)
        wrong(options->kind);
    *plan = (struct netless_plan){.way = kind->way, .loopback = kind->loopback,
                                  .map_root = kind->map_root, .unix_sockets = !kind->no_unix};
    plan->sealed = (struct netless_namespace){.user_fd = -1, .net_fd = -1, .euid = geteuid(),
                                              .egid = getegid()};
    if (kind->way != NETLESS_WAY_FILTER &&
        netless_namespace_make(kind->map_root, &plan->sealed, &report) < 0)
        failed(&report);
    if (kind->way != NETLESS_WAY_FILTER && plan->sealed.user_fd < 0)
        plan->way = NETLESS_WAY_MAKE;           /* as _settle_with does */
    netless_plan_seal(plan);
    if ((kind->way == NETLESS_WAY_FILTER && netless_has_root_powers()) ||
        plan->required & ~plan->layers) {
        report = (struct netless_report){.step = NETLESS_STEP_UNSUPPORTED, .error = EPERM};
        failed(&report);
    }
}

/* As netless._native does: what a probe could not install is not promised. How it was proved. */
static int settle(const struct options *options, struct netless_plan *plan)
{
    struct netless_request probe = {.probe = 1};

    draft(options, plan);
    leave_alone(&probe);
    if (netless_spawn(plan, &probe) < 0)
        failed(&probe.report);
    plan->layers = options->without_seal ? 0 : probe.report.layers;
    plan->optional = 0;
    return probe.report.proof;
}

static void describe(const struct options *options, const struct netless_plan *plan, int proof)
{
    if (strcmp(options->kind, "none") == 0) {
        printf("%d\n", netless_landlock_abi());
        return;
    }
    printf("way=%d layers=%d landlock_scoped=%d paths_by_landlock=%d unix_sockets=%d map_root=%d "
           "euid=%u proof=%d\n",
           plan->way, plan->layers, plan->landlock_scoped != 0, plan->paths_by_landlock,
           plan->unix_sockets, plan->map_root, plan->sealed.euid, proof);
}

/* ---- children ---- */

static int count(char **arguments)
{
    int number = 0;
    while (arguments[number] != NULL)
        number++;
    return number;
}

/* NUL-separated, as the request wants them. */
static char *block(char **arguments)
{
    size_t size = 1, used = 0;
    for (char **at = arguments; *at != NULL; at++)
        size += strlen(*at) + 1;
    char *text = malloc(size);
    if (text == NULL)
        wrong("malloc");
    for (char **at = arguments; *at != NULL; at++)
        used += (size_t)snprintf(text + used, size - used, "%s", *at) + 1;
    return text;
}

static pid_t spawn(const struct netless_plan *plan, const struct options *options, char **program,
                   int *keep, int keep_count)
{
    struct netless_request request = {
        .argv = block(program), .argc = count(program), .candidates = program[0],
        .candidate_count = 1, .keep = keep, .keep_count = keep_count, .close_fds = 1,
        .has_uid = options->ids, .uid = getuid(), .has_gid = options->ids, .gid = getgid(),
        .env = block(environ), .env_count = count(environ), .has_env = 1,
    };
    leave_alone(&request);
    pid_t pid = netless_spawn(plan, &request);
    free((char *)request.argv);
    free((char *)request.env);
    if (pid < 0)
        failed(&request.report);
    return pid;
}

/* ---- the launching thread ---- */

struct spawning {
    const struct netless_plan *plan;
    const struct options *options;
    pid_t pid;
};

static void *spawn_in_thread(void *argument)
{
    struct spawning *it = argument;
    it->pid = spawn(it->plan, it->options, it->options->program, NULL, 0);
    return NULL;
}

static pid_t spawn_by_thread(const struct netless_plan *plan, const struct options *options)
{
    struct spawning it = {.plan = plan, .options = options};
    pthread_attr_t attributes;
    pthread_t thread;

    if ((errno = pthread_attr_init(&attributes)) != 0 ||
        (errno = pthread_attr_setstacksize(&attributes, (size_t)PTHREAD_STACK_MIN)) != 0 ||
        (errno = pthread_create(&thread, &attributes, spawn_in_thread, &it)) != 0 ||
        (errno = pthread_join(thread, NULL)) != 0)
        wrong("a thread");
    return it.pid;
}

static pid_t spawn_plain(char **program)
{
    pid_t pid = vfork();
    if (pid == 0) {
        if (foreign.user_fd >= 0 && enter_both(&foreign) < 0)
            _exit(126);
        __real_execve(program[0], program, environ);
        _exit(127);
    }
    return pid < 0 ? (wrong("vfork"), -1) : pid;
}

static int wait_for(pid_t pid)
{
    int status;
    if (waitpid(pid, &status, 0) < 0)
        wrong("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A child of the same plan, connected by the pipes; back when it is ready. */
static pid_t start_sibling(const struct netless_plan *plan, const struct options *options)
{
    char address[32], byte;
    char *server[] = {"/attempt", "serve", "@netless-sibling", NULL};
    char *attacker[] = {"/attempt", "hunt", address, NULL};
    char **program = options->attacked ? attacker : server;
    int kept[2] = {dup(0), dup(1)};

    snprintf(address, sizeof address, "%lx", (unsigned long)canary);
    if (pipe2(to_sibling, O_CLOEXEC) < 0 || pipe2(from_sibling, O_CLOEXEC) < 0 ||
        dup2(to_sibling[0], 0) < 0 || dup2(from_sibling[1], 1) < 0)
        wrong("pipe");
    pid_t pid = options->plain_attacker ? spawn_plain(program)
                                        : spawn(plan, options, program, NULL, 0);
    for (int fd = 0; fd < 2; fd++)
        if (dup2(kept[fd], fd) < 0 || close(kept[fd]) < 0)
            wrong("dup2");
    close(from_sibling[1]);
    if (read(from_sibling[0], &byte, 1) != 1)
        wrong("the sibling");
    return pid;
}

/* Among the program's arguments, SIBLING is its pid. */
static void name_sibling(char **program, pid_t pid)
{
    static char text[16];
    snprintf(text, sizeof text, "%d", pid);
    for (; *program != NULL; program++)
        if (strcmp(*program, "SIBLING") == 0)
            *program = text;
}

static int launch(const struct options *options, const struct netless_plan *plan)
{
    int dumpable = prctl(PR_GET_DUMPABLE);
    int wants_sibling = options->sibling || options->attacked;
    pid_t sibling = wants_sibling ? start_sibling(plan, options) : 0;

    name_sibling(options->program, sibling);
    is_attacked = options->attacked;
    emptied = options->empty;
    int keep[2] = {PASSED_FD}, kept = options->fd != NULL;
    if (is_attacked) {
        keep[0] = from_sibling[0] < to_sibling[1] ? from_sibling[0] : to_sibling[1];
        keep[1] = from_sibling[0] < to_sibling[1] ? to_sibling[1] : from_sibling[0];
        kept = 2;
    }
    pid_t pid = strcmp(options->kind, "none") == 0
                    ? spawn_plain(options->program)
                : options->thread ? spawn_by_thread(plan, options)
                                  : spawn(plan, options, options->program, keep, kept);
    int status = wait_for(pid);
    if (options->attacked)      /* the attacker's word, and what became of the memory */
        return status != 0 ? WRONG : strcmp(canary, "safe") != 0 ? 0 : wait_for(sibling);
    if (sibling > 0) {
        kill(sibling, SIGKILL);
        wait_for(sibling);
    }
    if (options->dumpable && (dumpable != 1 || prctl(PR_GET_DUMPABLE) != 1))
        return 1;
    return status;
}

static void parse(int argc, char **argv, struct options *options)
{
    const struct { const char *name; int *flag; } flags[] = {
        {"--describe", &options->describe}, {"--without-seal", &options->without_seal},
        {"--sibling", &options->sibling}, {"--lie-make", &options->lie_make},
        {"--lie-launch", &options->lie_launch}, {"--ids", &options->ids},
        {"--dumpable", &options->dumpable}, {"--empty", &options->empty},
        {"--attacked", &options->attacked}, {"--plain-attacker", &options->plain_attacker},
        {"--lie-unshare", &options->lie_unshare}, {"--lie-user", &options->lie_user},
        {"--file-domain", &options->file_domain}, {"--foreign", &options->foreign},
        {"--thread", &options->thread}, {"--quit", &options->quit},
    };
    const struct { const char *name, **value; } values[] = {
        {"--fd", &options->fd}, {"--confine", &confinement},
        {"--enter", &options->profile}, {"--refuse", &options->refused},
    };
    int at = 2;

    options->kind = argc > 1 ? argv[1] : "";
    for (; at < argc && strcmp(argv[at], "--") != 0; at++) {
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
            if (strcmp(argv[at], flags[i].name) == 0)
                *flags[i].flag = 1;
        for (size_t i = 0; i < sizeof values / sizeof *values; i++)
            if (strcmp(argv[at], values[i].name) == 0 && at + 1 < argc)
                *values[i].value = argv[++at];
    }
    options->program = at + 1 < argc ? argv + at + 1 : NULL;
    if (options->program == NULL && !options->describe)
        wrong("usage: launch KIND [OPTION ...] -- PROGRAM [ARGUMENT ...]");
}

/* What surrounds this program, and so everything that it starts. */
static void surround(const struct options *options)
{
    if (options->fd != NULL && open_as(options->fd, PASSED_FD) < 0)
        wrong(options->fd);
    if (options->profile != NULL && change_profile(options->profile) < 0)
        wrong(options->profile);
    if (options->file_domain && enter_file_domain() < 0)
        wrong("a file domain");
    if (options->refused != NULL && refuse(options->refused) < 0)
        wrong(options->refused);
}

int main(int argc, char **argv)
{
    struct options options = {.kind = NULL};
    struct netless_plan plan = {.way = 0, .sealed = {.user_fd = -1, .net_fd = -1}};
    int proof = NETLESS_PROOF_NONE;

    parse(argc, argv, &options);
    surround(&options);
    lies = options.lie_make ? SETNS_NET | UNSHARE_NET : 0;
    for (int patience = 50; patience > 0; patience--) {
        if (strcmp(options.kind, "none") != 0)
            proof = settle(&options, &plan);
        if (!options.foreign || replace(&plan.sealed, &foreign) == 0)
            break;
        if (errno != EAGAIN || patience == 1)
            wrong("a foreign namespace");
    }
    lies = (options.lie_launch ? SETNS_NET | UNSHARE_NET : 0) |
           (options.lie_unshare ? UNSHARE_NET : 0) | (options.lie_user ? SETNS_USER : 0);
    if (options.describe) {
        describe(&options, &plan, proof);
        return 0;
    }
    quits = options.quit;
    return launch(&options, &plan);
}
