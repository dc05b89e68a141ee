/* Descriptors of every kind that a child may be handed. */
#ifndef NETLESS_KERNELS_OPENED_H
#define NETLESS_KERNELS_OPENED_H

/* Opens a descriptor of the named kind under that number, inheritable; -1 with errno. */
int open_as(const char *name, int number);

#endif
