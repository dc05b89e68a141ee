/* connect HOST PORT: exit status 0 when a TCP connection to it stands. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in four = {.sin_family = AF_INET};
    if (argc != 3)
        return 2;
    four.sin_port = six.sin6_port = htons((unsigned short)atoi(argv[2]));
    int is_six = strchr(argv[1], ':') != NULL;
    inet_pton(is_six ? AF_INET6 : AF_INET, argv[1],
              is_six ? (void *)&six.sin6_addr : (void *)&four.sin_addr);
    int fd = socket(is_six ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    if (fd < 0)
        return 3;
    if (connect(fd, is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four,
                is_six ? sizeof six : sizeof four) < 0)
        return 1;
    return write(fd, "GET /\r\n", 7) == 7 ? 0 : 1;
}
