# The machine's own root over 9p, read-only, with everything written to it kept in memory.
mkdir -p /lower /upper /new
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=262144 root /lower
mount -t tmpfs tmpfs /upper
mkdir /upper/changes /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/changes,workdir=/upper/work overlay /new
[ ! -e /profiles ] || apparmor_parser --replace /profiles
for place in proc sys dev; do mount --move /$place /new/$place; done
mount -t tmpfs tmpfs /new/run
mkdir -p /new/dev/shm
mount -t tmpfs -o mode=1777 tmpfs /new/dev/shm
cp /python.sh /new/run/python.sh
exec switch_root /new /bin/sh /run/python.sh
