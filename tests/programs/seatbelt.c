/*
 * A stand-in for what macos.c takes from libSystem, to run its control flow on Linux.
 *
 * SEATBELT in the environment chooses: "deny" (or unset) really denies connect and
 * bind, and refuses a second time as macOS does; "refuse", "text", "silent", "lie", "hang", "die".
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

char ***_NSGetEnviron(void);
int sandbox_init(const char *profile, uint64_t flags, char **error);
void sandbox_free_error(char *error);

char ***_NSGetEnviron(void)
{
    return &environ;
}

/* Takes its time, so that other threads fork before the ends are closed on exec. */
int pipe(int ends[2])
{
    int result = (int)syscall(SYS_pipe2, ends, 0);
    usleep(2000);
    return result;
}

static int refuse(char **text)
{
    *text = strdup("the stand-in refuses");
    errno = EPERM;
    return -1;
}

static int refuse_by_text(char **text)
{
    *text = strdup("stand-in: Operation not permitted");
    errno = 0;
    return -1;
}

static int is_denied(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(9)};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    int result = connect(fd, (struct sockaddr *)&here, sizeof here);
    int error = errno;
    close(fd);
    return result < 0 && error == EPERM;
}

static int deny(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_connect, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_bind, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int sandbox_init(const char *profile, uint64_t flags, char **error)
{
    const char *mode = getenv("SEATBELT");

    if (flags != 0 || strstr(profile, "(deny network*)") == NULL)
        abort();
    if (mode == NULL || strcmp(mode, "deny") == 0)
        return is_denied() ? refuse(error) : deny();
    if (strcmp(mode, "refuse") == 0)
        return refuse(error);
    if (strcmp(mode, "text") == 0)
        return refuse_by_text(error);
    if (strcmp(mode, "hang") == 0)
        for (;;)
            pause();
    if (strcmp(mode, "die") == 0)
        kill(getpid(), SIGKILL);
    return strcmp(mode, "lie") == 0 ? 0 : -1;   /* "silent": neither errno nor text */
}

void sandbox_free_error(char *error)
{
    free(error);
}
