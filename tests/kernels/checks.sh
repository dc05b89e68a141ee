# Stage C: every kind of isolation, as root and as a user.
. /functions.sh

: >/run/reached
chmod 666 /run/reached
/attempt listen >/run/listening &
until [ -s /run/listening ]; do usleep 10000; done
echo "@ fact release $(uname -r)"
echo "@ fact modules $(wc -w </modules/order)"
landlock=$(/launch none --describe)
echo "@ fact landlock $landlock"
as_one root ""
as_one user "/attempt as 1000"
usleep 200000
echo "@ arrivals $(arrived) $expected"
