/* Returns at once; with an argument, only when its standard input ends. */
#include <unistd.h>

int main(int argc, char **argv)
{
    char byte;
    (void)argv;
    return argc > 1 && read(0, &byte, 1) < 0;
}
