/*
 * socketcall: an AF_UNIX socket by the one system call of 32-bit x86 for all that sockets do,
 * which glibc may take, and by socket(2): two words, "open" or the errno.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *told(long result)
{
    return result >= 0 ? "open" : errno == ENOSYS ? "ENOSYS" : "refused";
}

int main(void)
{
    long arguments[] = {AF_UNIX, SOCK_STREAM, 0};

    printf("%s ", told(syscall(SYS_socketcall, 1, arguments)));
    printf("%s\n", told(syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0)));
    return 0;
}
