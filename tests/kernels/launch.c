/*
 * launch KIND [OPTION ...] -- PROGRAM [ARGUMENT ...]
 *
 * One child by the launch path of csrc/ itself, or by none of it (KIND "none").
 * The exit status is the program's; 100 when the launch failed, with
 * "failed:STEP:ERRNO" on stdout; 101 when this program is wrong.
 *
 *   --describe         print "way layers scoped fs unix" of the settled plan, and start nothing;
 *                      with "none", the kernel's Landlock ABI
 *   --without-seal     the control of every layer: the same launch without any
 *   --fd NAME          let the child inherit such a descriptor, as number 7
 *   --sibling          start `attempt serve` with the same plan first; SIBLING among the
 *                      arguments stands for its pid
 *   --lie-make, --lie-launch
 *                      a kernel that says yes to a new network namespace and gives none
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
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "opened.h"

enum { FAILED = 100, WRONG = 101, PASSED_FD = 7 };

struct options {
    const char *kind, *fd, *profile;
    char **program;
    int describe, without_seal, sibling, lie_make, lie_launch, ids, dumpable, attacked,
        plain_attacker, empty;
};

static int lying, emptied;
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
    if (lying)
        flags &= ~CLONE_NEWNET;
    int result = flags == 0 ? 0 : __real_unshare(flags);
    return result == 0 && confinement != NULL && (flags & CLONE_NEWUSER)
               ? change_profile(confinement)
               : result;
}

int __wrap_setns(int fd, int kind)
{
    if (lying)
        kind &= ~CLONE_NEWNET;
    return kind == 0 ? 0 : __real_setns(fd, kind);
}

int __wrap_execve(const char *path, char *const argv[], char *const envp[])
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};

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
    if (kind->way == NETLESS_WAY_FILTER &&
        (netless_has_root_powers() || !(plan->layers & NETLESS_LAYER_LANDLOCK))) {
        report = (struct netless_report){.step = NETLESS_STEP_UNSUPPORTED, .error = EPERM};
        failed(&report);
    }
}

/* As netless._native does: what a probe could not install is not promised. */
static void settle(const struct options *options, struct netless_plan *plan)
{
    struct netless_request probe = {.probe = 1};

    draft(options, plan);
    plan->optional = plan->layers;
    leave_alone(&probe);
    if (netless_spawn(plan, &probe) < 0)
        failed(&probe.report);
    plan->layers = options->without_seal ? 0 : probe.report.layers;
    plan->optional = 0;
}

static void describe(const struct options *options, const struct netless_plan *plan)
{
    if (strcmp(options->kind, "none") == 0) {
        printf("%d\n", netless_landlock_abi());
        return;
    }
    printf("%d %d %d %d %d\n", plan->way, plan->layers, plan->landlock_scoped != 0,
           plan->landlock_fs != 0, plan->unix_sockets);
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

static pid_t spawn_plain(char **program)
{
    pid_t pid = vfork();
    if (pid == 0) {
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
    };
    const struct { const char *name, **value; } values[] = {
        {"--fd", &options->fd}, {"--confine", &confinement},
        {"--enter", &options->profile},
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

int main(int argc, char **argv)
{
    struct options options = {.kind = NULL};
    struct netless_plan plan = {.way = 0};

    parse(argc, argv, &options);
    if (options.fd != NULL && open_as(options.fd, PASSED_FD) < 0)
        wrong(options.fd);
    if (options.profile != NULL && change_profile(options.profile) < 0)
        wrong(options.profile);
    lying = options.lie_make;
    if (strcmp(options.kind, "none") != 0)
        settle(&options, &plan);
    lying = options.lie_launch;
    if (options.describe) {
        describe(&options, &plan);
        return 0;
    }
    return launch(&options, &plan);
}
