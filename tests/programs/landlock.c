/*
 * landlock [DIRECTORY...] -- COMMAND...: executes COMMAND in a Landlock domain that
 * handles every file right this kernel knows, as programs that confine themselves do.
 *
 * Without a directory, all of them are granted under "/". With directories: reading and
 * executing everywhere, the rest under these and for /dev/null, as coding agents have it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* linux/landlock.h; the numbers are the same on every architecture. */
enum { CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446, GET_VERSION = 1,
       PATH_BENEATH = 1 };
enum { EXECUTE = 1, WRITE_FILE = 2, READ_FILE = 4, READ_DIR = 8, TRUNCATE = 1 << 14,
       IOCTL_DEV = 1 << 15 };

static void fail(const char *what)
{
    fprintf(stderr, "landlock: %s: %s\n", what, strerror(errno));
    exit(125);
}

/* What each version added to the thirteen rights of the first. */
static uint64_t all_rights(void)
{
    long version = syscall(CREATE_RULESET, NULL, 0, GET_VERSION);

    if (version < 1)
        fail("landlock_create_ruleset");
    return 0x1fff | (version >= 2 ? 1 << 13 : 0) | (version >= 3 ? TRUNCATE : 0) |
           (version >= 5 ? IOCTL_DEV : 0) | (version >= 9 ? 1 << 16 : 0);
}

static void grant(int ruleset, const char *path, uint64_t rights)
{
    struct stat found;
    int fd = open(path, O_PATH | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &found) < 0)
        fail(path);
    if (!S_ISDIR(found.st_mode))        /* the others are for directories only */
        rights &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
    const struct { uint64_t allowed; int32_t parent; } __attribute__((packed)) rule = {rights, fd};
    if (syscall(ADD_RULE, ruleset, PATH_BENEATH, &rule, 0) < 0)
        fail("landlock_add_rule");
    close(fd);
}

static void restrict_self(int ruleset)
{
    if (syscall(RESTRICT_SELF, ruleset, 0) < 0 &&
        (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(RESTRICT_SELF, ruleset, 0) < 0))
        fail("landlock_restrict_self");
    close(ruleset);
}

int main(int argc, char **argv)
{
    uint64_t every = all_rights();
    int ruleset = (int)syscall(CREATE_RULESET, &every, sizeof every, 0), at = 1;

    if (ruleset < 0)
        fail("landlock_create_ruleset");
    for (; at < argc && strcmp(argv[at], "--") != 0; at++)
        grant(ruleset, argv[at], every);
    if (at + 1 >= argc) {
        fprintf(stderr, "usage: landlock [DIRECTORY...] -- COMMAND...\n");
        return 125;
    }
    if (at > 1)
        grant(ruleset, "/dev/null", every);
    grant(ruleset, "/", at > 1 ? EXECUTE | READ_FILE | READ_DIR : every);
    restrict_self(ruleset);
    execvp(argv[at + 1], argv + at + 1);
    fail(argv[at + 1]);
}
