/*
 * What a failed step and its errno mean on this system, for netless-exec.
 *
 * The same decisions as in src/netless/_diagnosis.py, with the texts of that
 * file; the tests bring about each environment and compare the two.
 */
#define _GNU_SOURCE
#include "launcher.h"

#include "texts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define IS_AMONG(number, list) is_among((int)(number), list, sizeof list / sizeof *list)

static int is_among(int number, const int *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == number)
            return 1;
    return 0;
}

/* ---- this system ---- */

/* A file of /proc or /sys, as far as it fits; empty where it cannot be read. */
static const char *read_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t more = 1;

    while (fd >= 0 && more > 0 && length < size - 1) {
        more = read(fd, text + length, size - 1 - length);
        length += more > 0 ? (size_t)more : 0;
    }
    if (fd >= 0)
        close(fd);
    text[length] = '\0';
    return text;
}

/* Can it be read, be it empty? */
static int can_read(const char *path)
{
    char byte;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, &byte, 1);

    if (fd >= 0)
        close(fd);
    return size >= 0;
}

/* The file's first number; -1 where there is none. */
static long long number_in(const char *path)
{
    char text[32], *end;
    long long number = strtoll(read_text(path, text, sizeof text), &end, 10);

    return end == text ? -1 : number;
}

/* A hexadecimal field of /proc/self/status, named with its colon; all bits where it
   cannot be read, so that nothing is said to be missing that may be there. */
static unsigned long long status(const char *field)
{
    char text[8192];
    const char *found = strstr(read_text("/proc/self/status", text, sizeof text), field);

    return found == NULL ? ~0ULL : strtoull(found + strlen(field), NULL, 16);
}

static int is_filtered(void)
{
    return status("\nSeccomp:") == 2;
}

static int is_apparmor_restricted(void)
{
    return number_in("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1;
}

/* Is an AppArmor profile in force for this process? */
static int is_confined(void)
{
    char text[512];
    const char *label = read_text("/proc/self/attr/apparmor/current", text, sizeof text);

    return strstr(label, " (enforce)") != NULL;
}

/* No mount point at "/": the root directory is not the root of a mount. */
static int is_chroot(void)
{
    static char mounts[1 << 18];        /* ID PARENT DEVICE ROOT MOUNT-POINT ... */
    const char *line = read_text("/proc/self/mountinfo", mounts, sizeof mounts);

    if (*line == '\0')
        return 0;
    for (; line != NULL && *line != '\0'; line = strchr(line, '\n'), line += line != NULL) {
        for (int field = 0; field < 4; field++)
            line += strcspn(line, " ") + 1;
        if (strncmp(line, "/ ", 2) == 0)
            return 0;
    }
    return 1;
}

/* The id map's next line: first id inside, first id outside, how many. */
static int next_mapping(const char **map, unsigned long mapping[3])
{
    char *end = (char *)*map;

    for (int i = 0; i < 3; i++)
        mapping[i] = strtoul(end, &end, 10);
    *map = end;
    return mapping[2] > 0;
}

/* A map that cannot be read may have it. */
static int is_mapped(const char *path, unsigned int id)
{
    char text[4096];
    const char *map = read_text(path, text, sizeof text);
    unsigned long mapping[3];

    if (!can_read(path))
        return 1;
    while (next_mapping(&map, mapping))
        if (id >= mapping[0] && id - mapping[0] < mapping[2])
            return 1;
    return 0;
}

static int is_unmapped(void)
{
    return !(is_mapped("/proc/self/uid_map", geteuid()) &&
             is_mapped("/proc/self/gid_map", getegid()));
}

/* In a user namespace other than the initial one? */
static int is_nested(void)
{
    char text[4096];
    const char *map = read_text("/proc/self/uid_map", text, sizeof text);
    unsigned long mapping[3];

    return !(next_mapping(&map, mapping) && mapping[0] == 0 && mapping[1] == 0 &&
             mapping[2] == 4294967295UL);
}

static int is_wsl1(void)
{
    static const char ending[] = "-Microsoft";
    struct utsname name;
    size_t length;

    if (uname(&name) < 0)
        return 0;
    length = strlen(name.release);
    return length >= sizeof ending - 1 &&
           strcmp(name.release + length - (sizeof ending - 1), ending) == 0;
}

/* ---- findings ---- */

static const struct netless_finding *out_of_space(int step)
{
    long long limit = number_in("/proc/sys/user/max_user_namespaces");

    if (limit == 0)
        return &USERNS_SYSCTL;
    if (number_in("/proc/sys/user/max_net_namespaces") == 0 ||
        step == NETLESS_STEP_UNSHARE_NET || netless_try_unshare(CLONE_NEWUSER) == 0)
        return &NETNS_LIMIT;
    return is_nested() && limit == MOST_NAMESPACES ? &NESTED : &USERNS_SYSCTL;
}

static const struct netless_finding *making_refused(int error)
{
    if (is_unmapped())
        return &UNMAPPED;
    if (error == EACCES && is_apparmor_restricted())
        return &APPARMOR;
    if (error == EACCES && number_in("/sys/fs/selinux/enforce") == 1)
        return &SELINUX;
    if (number_in("/proc/sys/kernel/unprivileged_userns_clone") == 0 && geteuid() != 0)
        return &DEBIAN_SYSCTL;
    if (is_chroot())
        return &CHROOT;
    if (is_filtered())
        return &SECCOMP;
    int is_apparmor = is_apparmor_restricted() || (error == EACCES && is_confined());
    return is_apparmor ? &APPARMOR : &UNEXPLAINED;
}

static const struct netless_finding *mapping_refused(int error)
{
    if (is_unmapped())
        return &UNMAPPED;
    if (geteuid() == 0 && !(status("\nCapEff:") >> CAP_SETFCAP & 1))
        return &SETFCAP;
    if (is_apparmor_restricted())
        return &APPARMOR;
    return error == EACCES ? &UNWRITABLE_PROC : NULL;
}

static const struct netless_finding *not_permitted(int step, int error)
{
    if (IS_AMONG(step, MAKING))
        return making_refused(error);
    if (IS_AMONG(step, MAPPING))
        return mapping_refused(error);
    if (step == NETLESS_STEP_LOOPBACK)
        return is_apparmor_restricted() ? &APPARMOR : &POWERLESS;
    return NULL;
}

static const struct netless_finding *not_there(int step, int error)
{
    int has_proc = error == ENOENT && access("/proc/self/status", R_OK) == 0;

    return has_proc && (step == NETLESS_STEP_VERIFY_NET || step == NETLESS_STEP_OPEN_NAMESPACE)
               ? &KERNEL
               : &NO_PROC;
}

static const struct netless_finding *not_known(int error)
{
    if (is_wsl1())
        return &WSL1;
    return error == ENOSYS && is_filtered() ? &SECCOMP : &KERNEL;
}

static const struct netless_finding *layer_refused(int step, int error)
{
    if (!IS_AMONG(error, LAYER_ERRORS))
        return NULL;
    if (step == NETLESS_STEP_SECCOMP)
        return &LAYER_REFUSED_SECCOMP;
    return step == NETLESS_STEP_LANDLOCK ? &LAYER_REFUSED_LANDLOCK : NULL;
}

static const struct netless_finding *find(int step, int error)
{
    const struct netless_finding *layer = layer_refused(step, error);

    if (layer != NULL)
        return layer;
    if (step == NETLESS_STEP_UNSUPPORTED)
        return &UNSUPPORTED;
    if (step == NETLESS_STEP_STALE)
        return &STALE;
    if (step == NETLESS_STEP_SANDBOX_INIT)
        return error == EPERM ? &ALREADY_SANDBOXED : NULL;
    if (IS_AMONG(error, NOT_THERE) && IS_AMONG(step, PROC_STEPS))
        return not_there(step, error);
    if (error == EROFS && IS_AMONG(step, MAPPING))
        return &READ_ONLY_PROC;
    if ((error == ENOSPC || error == EUSERS) && IS_AMONG(step, MAKING))
        return out_of_space(step);
    if (error == EPERM || error == EACCES)
        return not_permitted(step, error);
    if ((error == EINVAL || error == ENOSYS) && IS_AMONG(step, MAKING))
        return not_known(error);
    return error == EPIPE && step == NETLESS_STEP_CHANNEL ? &DIED : NULL;
}

struct netless_finding netless_explain(const struct netless_report *report)
{
    /* sandbox_init promises a text, not an errno */
    int is_sandboxed = report->step == NETLESS_STEP_SANDBOX_INIT &&
                       strstr(report->detail, strerror(EPERM)) != NULL;
    const struct netless_finding *found = find(report->step, is_sandboxed ? EPERM : report->error);

    if (found != NULL)
        return *found;
    return (struct netless_finding){"refused", PURPOSES[report->step], HINT};
}

int netless_is_resource_error(int error)
{
    return error == ENOMEM || error == EAGAIN || error == EMFILE || error == ENFILE;
}
