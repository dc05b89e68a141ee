/*
 * witness MARKER: makes the symbolic link MARKER, which says that this program
 * ran, in which network namespace and with which seccomp mode ("4026531840 2").
 * It needs no system call that the launch sequence uses, so that a fault meant
 * for one cannot hit the other; the mode, which does, is -1 then.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char text[64];
    struct stat found = {.st_ino = 0};

    if (argc != 2)
        return 2;
    syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/net", &found, 0);
    snprintf(text, sizeof text, "%lu %d", (unsigned long)found.st_ino, prctl(PR_GET_SECCOMP));
    return symlink(text, argv[1]) < 0;
}
