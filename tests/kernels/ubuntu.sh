# Ubuntu's restriction of unprivileged user namespaces, reproduced: whoever makes one changes
# to the enforced profile "unprivileged_userns". Results as in checks.sh.
. /functions.sh

: >/run/reached
chmod 666 /run/reached
/attempt listen >/run/listening &
until [ -s /run/listening ]; do usleep 10000; done
echo "@ fact modules 0"
apparmor_parser --replace /profiles 2>/run/err || echo "@ odd apparmor_parser $(tail -n 1 /run/err)"
USER=user AS="/attempt as 1000"
confined="--confine unprivileged_userns"

network none
for kind in shared private loopback map-root no-unix make make-loopback; do
    ran runs $kind $confined -- /bin/true
    for way in tcp4 tcp6; do
        address=127.0.0.1
        [ $way = tcp4 ] || address=::1
        ran $way $kind $confined -- /connect $address 8000
    done
done
for kind in loopback make-loopback; do ran own-loopback $kind $confined -- /attempt own-loopback; done
echo "@ plan user shared $($AS /launch shared $confined --describe)"
for kind in shared private loopback make; do
    ran detached $kind --enter detached -- /connect 127.0.0.1 8000
    ran detached-runs $kind --enter detached -- /bin/true
    ran without-userns $kind --enter without_userns -- /bin/true
done
usleep 200000
echo "@ arrivals $(arrived) $expected"
