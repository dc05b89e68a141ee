/* What may be around a caller of netless, or happen to it between two launches. */
#ifndef NETLESS_KERNELS_AROUND_H
#define NETLESS_KERNELS_AROUND_H

#include "spawn.h"

/* All of these: 0, or -1 with errno. */

/* Puts this process into a Landlock domain that handles files, and allows everything below "/". */
int enter_file_domain(void);
/* Puts a filter around this process that refuses "getsockopt" (EPERM) or "clone3" (ENOSYS). */
int refuse(const char *call);
/* Puts the calling process into both. */
int enter_both(const struct netless_namespace *both);
/* Closes the kept handles, and opens those of another user and network namespace under the same
   numbers; its network namespace has the inode number of the kept one, lo up, and a listener on
   127.0.0.1, port 8001. Nothing is replaced where nothing was kept. EAGAIN: that number has not
   come again; the kept namespace is gone, and a new one may have more luck. */
int replace(const struct netless_namespace *kept, struct netless_namespace *foreign);

#endif
