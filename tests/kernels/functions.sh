# What the jobs of stage C are made of. Each line that begins with "@" is a result; report.py says what each must be:
#   @ fact NAME VALUE
#   @ plan USER KIND NAME=VALUE...                 or how it failed
#   @ ran USER KIND NAME OUTCOME                   "open", "shut", or how the launch failed
#   @ arrivals SEEN EXPECTED                       at the listener on 127.0.0.1 and ::1
# USER is root or user, KIND one of launch.c's. The controls run as "none" (no isolation), as
# "unsealed" (the namespace without any layer), and as "unsealed-root" (the same with uid 0).

expected=0
arrived() { wc -c </run/reached; }

outcome() {
    # What became of a launch, which $AS runs as the user.
    local status
    case $1 in
        unsealed) shift; set -- shared --without-seal "$@" ;;
        unsealed-root) shift; set -- map-root --without-seal "$@" ;;
    esac
    $AS /launch "$@" >/run/out 2>/run/err
    status=$?
    case $status in
        0) echo open ;;
        1 | 3) echo shut ;;
        100) tail -n 1 /run/out ;;
        *) echo "status-$status-$(tail -n 1 /run/err | tr ' ' '_')" ;;
    esac
}

ran() {
    # NAME KIND [OPTION...] -- PROGRAM [ARGUMENT...]
    local name=$1
    shift
    echo "@ ran $USER $1 $name $(outcome "$@")"
}

network() {
    reach tcp4 "$1" /connect 127.0.0.1 8000
    reach tcp6 "$1" /connect ::1 8000
    reach udp4 "$1" /attempt udp 127.0.0.1
    reach udp6 "$1" /attempt udp ::1
}

reach() {
    # Open is what has arrived at the listener, whatever the program believes.
    local name=$1 kind=$2 found before=$(arrived) patience=200
    shift 2
    found=$(outcome "$kind" -- "$@")
    if [ "$found" = open ]; then
        [ "$kind" = none ] || patience=20       # where nothing should come
        until [ "$(arrived)" -gt "$before" ] || [ $patience = 0 ]; do
            usleep 1000
            patience=$((patience - 1))
        done
        [ "$(arrived)" -gt "$before" ] || found=shut
    fi
    [ "$kind" != none ] || expected=$((expected + 1))
    echo "@ ran $USER $kind $name $found"
}

holes() {
    local hole
    for hole in vsock vsock-high families int80-vsock io-uring keys tioclinux; do
        ran $hole "$1" -- /holes $hole
    done
    ran vsock-32 "$1" -- /holes32 vsock
    ran socketcall-vsock-32 "$1" -- /holes32 socketcall-vsock
    for hole in tiocsti tiocsti-high; do
        ran $hole "$1" -- /bin/setsid -c /holes $hole </dev/ttyS0
    done
    # /sbin/request-key here is ours, and the type of the key is "user".
    rm -f /run/upcall
    hole=$(outcome "$1" -- /holes upcall "netless:$USER:$1:$(cat /proc/uptime)")
    case $hole in
        open) [ "$(cat /run/upcall 2>/dev/null)" = "$(readlink /proc/self/ns/net)" ] || hole=shut ;;
    esac
    echo "@ ran $USER $1 upcall $hole"
}

outside() {
    # A process and a socket outside.
    local victim way
    $AS /bin/sleep 1000 &
    victim=$!
    for way in ptrace writev mem getfd setns pidfd-setns; do
        ran $way "$1" -- /reach $way $victim
    done
    kill $victim
    ran unix-abstract "$1" -- /holes unix @netless-outside
}

paths() {
    local way
    ran unix "$1" -- /holes unix /run/s
    for way in dgram-pair raw-pair dgram-pair-high; do
        ran $way "$1" -- /holes $way /run/d
    done
}

siblings() {
    local way
    ran usersock "$1" -- /holes usersock
    ran sibling-abstract "$1" --sibling -- /holes unix @netless-sibling
    for way in ptrace writev mem getfd; do
        ran sibling-$way "$1" --sibling -- /reach $way SIBLING
    done
}

strikes() {
    # At the moment before execve: by a process outside, which may; by a sibling, at a child that
    # has thrown its capabilities away; and at one that has not.
    ran strike-plain shared --attacked --plain-attacker -- /bin/true
    ran strike-emptied unsealed --attacked --empty -- /bin/true
    ran strike shared --attacked -- /bin/true
    # Root's attacker keeps all of root's capabilities where nothing is sealed.
    [ "$USER" = root ] || ran strike unsealed --attacked -- /bin/true
}

settings() {
    # Of the network namespace, and of the user namespace: what siblings have in common.
    ran net-settings "$1" -- /bin/sh -c 'echo 4096 >/proc/sys/net/ipv4/ip_local_reserved_ports'
    ran user-settings "$1" -- /bin/sh -c 'echo 4096 >/proc/sys/user/max_net_namespaces'
}

files() {
    # Renames and links across directories, and the mounts of nested sandboxes.
    ran move "$1" -- /attempt move
    ran mounts "$1" -- /bin/unshare -Urm /bin/true
    [ "$landlock" != 0 ] || return
    ran domain-move "$1" --file-domain -- /attempt move
    ran domain-mounts "$1" --file-domain -- /bin/unshare -Urm /bin/true
}

replaced() {
    # Another namespace under the numbers of the kept one, for each proof that there is.
    ran foreign none --foreign -- /connect 127.0.0.1 8001
    for kind in shared private map-root; do
        ran foreign $kind --foreign -- /connect 127.0.0.1 8001
        ran foreign-no-cookie $kind --refuse getsockopt --foreign -- /connect 127.0.0.1 8001
    done
    for kind in shared private loopback make; do
        echo "@ plan $USER $kind-no-cookie $($AS /launch $kind --refuse getsockopt --describe)"
        ran runs-no-cookie $kind --refuse getsockopt -- /bin/true
        ran no-cookie $kind --refuse getsockopt -- /connect 127.0.0.1 8000
    done
}

ended() {
    # By SIGQUIT, right before execve and after it: with how many cores left behind.
    local name=$1 kind=$2 found
    rm -rf /run/cores
    mkdir -m 1777 /run/cores
    shift
    found=$(cd /run/cores && ulimit -c unlimited && outcome "$@")
    echo "@ ran $USER $kind $name $found$(ls /run/cores | wc -l)"
}

starts() {
    # Ways in which a launch is made.
    ran lost-packets none -- /attempt lost-packets
    ran lost-stream none -- /attempt lost-stream
    ended quit none -- /attempt quit
    for kind in shared make; do
        ended quit $kind --quit -- /bin/true
        ended quit-later $kind -- /attempt quit
        ran no-clone3 $kind --refuse clone3 -- /bin/true
        ran thread $kind --thread -- /bin/true
        ran thread-no-clone3 $kind --thread --refuse clone3 -- /bin/true
        ran thread-no-cookie $kind --thread --refuse getsockopt -- /bin/true
    done
}

descriptors() {
    local fd
    for fd in tcp udp netlink vsock tun netns userns pidfd procdir memory io_uring userfaultfd; do
        ran fd-$fd shared --fd $fd -- /bin/true
    done
    [ "$USER" != root ] || ran fd-packet shared --fd packet -- /bin/true
    for fd in eventfd timerfd epoll signalfd inotify memfd null file pipe stream-pair \
        seqpacket-pair datagram-pair; do
        ran fd-$fd shared --fd $fd -- /bin/true
    done
    ran fd-datagram-pair no-unix --fd datagram-pair -- /bin/true
    ran fd-stream-pair no-unix --fd stream-pair -- /bin/true
    # One that is not connected yet reaches whatever name the domain of its user allows.
    for fd in none shared make $([ "$filter" = no ] || echo filter); do
        ran fd-names $fd --fd unix-datagram -- /attempt send 7 @netless-datagram
    done
    ran fd-through none --fd tcp -- /attempt through 7
    expected=$((expected + 2))      # the launch that was refused had connected before
}

ordinary() {
    ran runs "$1" -- /bin/true
    ran closes-descriptors "$1" -- /attempt closed 7
    ran dumpable "$1" --dumpable -- /bin/true
    # Only root maps more than the one id.
    [ "$1" = map-root ] || ran dumpable-with-ids "$1" --dumpable --ids -- /bin/true
}

limits() {
    local limit before kind found patience
    for limit in max_user_namespaces max_net_namespaces; do
        before=$(cat /proc/sys/user/$limit)
        echo 0 >/proc/sys/user/$limit
        for kind in shared private loopback make map-root; do
            ran $limit-0 $kind -- /connect 127.0.0.1 8000
        done
        echo "$before" >/proc/sys/user/$limit
    done
    # Enough for the shared namespace, not for one more: unshare(CLONE_NEWNET) is refused after
    # setns, in a child that is still in the network it started in. The namespaces of the checks
    # before are taken down meanwhile, hence the patience.
    echo 1 >/proc/sys/user/max_net_namespaces
    for kind in private loopback; do
        patience=50 found=failed:6:28
        while [ "$found" = failed:6:28 ] && [ $patience != 0 ]; do
            usleep 100000
            patience=$((patience - 1))
            found=$(outcome $kind -- /connect 127.0.0.1 8000)
        done
        echo "@ ran $USER $kind max_net_namespaces-1 $found"
    done
    echo "$before" >/proc/sys/user/max_net_namespaces
}

lies() {
    local kind
    for kind in shared private loopback make make-loopback map-root; do
        ran lie-launch $kind --lie-launch -- /connect 127.0.0.1 8000
    done
    for kind in shared private map-root; do
        ran lie-make $kind --lie-make -- /connect 127.0.0.1 8000
        ran lie-user $kind --lie-user -- /connect 127.0.0.1 8000
    done
    for kind in private loopback; do
        ran lie-unshare $kind --lie-unshare -- /connect 127.0.0.1 8000
    done
}

controls() {
    network none
    outside none
    paths none
    holes none
    siblings unsealed
    holes unsealed
    paths unsealed
    ran packet unsealed-root -- /holes packet
    settings unsealed-root
    files none
}

isolated() {
    local plan=$($AS /launch "$1" --describe)
    echo "@ plan $USER $1 $plan"
    case $plan in failed:*) return ;; esac
    case $1 in filter) filter=yes ;; esac
    ordinary "$1"
    files "$1"
    network "$1"
    case $1 in filter*) ;; *) ran own-unix "$1" -- /attempt own-unix "/run/own-$USER-$1" ;; esac
    case $1 in *loopback) ran own-loopback "$1" -- /attempt own-loopback ;; esac
    case $1 in
        shared | private | make | map-root)
            siblings "$1"
            settings "$1"
            ran packet "$1" -- /holes packet
            ;;
    esac
    # The layers are the same whatever the way in.
    case $1 in shared | make | no-unix | filter*) outside "$1"; paths "$1"; holes "$1" ;; esac
}

as_one() {
    USER=$1 AS=$2 filter=no
    controls
    for kind in shared private loopback make make-loopback map-root no-unix filter filter-no-unix; do
        isolated $kind
    done
    descriptors
    strikes
    limits
    lies
    replaced
    starts
}
