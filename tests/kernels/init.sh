#!/bin/sh
# The guest's first process: this kernel's own checks, printed to the console, then off.
export PATH=/bin:/:/usr/sbin HOME=/
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /run /tmp /sbin /dev/pts
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /run
mount -t securityfs securityfs /sys/kernel/security 2>/dev/null
exec >/dev/console 2>&1 </dev/console
for module in $(cat /modules/order); do insmod "/modules/$module" || echo "@ broken insmod $module"; done
echo 1 >/proc/sys/kernel/printk
set_if_there() { [ ! -e "/proc/sys/$1" ] || echo "$2" >"/proc/sys/$1"; }
set_if_there dev/tty/legacy_tiocsti 1   # so that the control of TIOCSTI works
set_if_there kernel/yama/ptrace_scope 0
set_if_there vm/unprivileged_userfaultfd 1
set_if_there kernel/io_uring_disabled 0
set_if_there kernel/unprivileged_userns_clone 1
chmod 666 /dev/console /dev/ttyS0 /dev/null
[ ! -e /dev/net/tun ] || chmod 666 /dev/net/tun
stty -echo </dev/console                # what TIOCSTI types
ifconfig lo up
. /job.sh
echo "@ end"
poweroff -f
