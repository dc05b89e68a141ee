/*
 * witness MARKER: makes the symbolic link MARKER, which says that this program
 * ran, in which network namespace, with which seccomp mode and whether it can have
 * an Internet socket ("4026531840 2 1").  It needs no system call that the launch
 * sequence uses, so that a fault meant for one cannot hit the other; the mode and
 * the socket do, and are wrong then.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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
    snprintf(text, sizeof text, "%lu %d %d", (unsigned long)found.st_ino,
             prctl(PR_GET_SECCOMP), socket(AF_INET, SOCK_STREAM, 0) >= 0);
    return symlink(text, argv[1]) < 0;
}
