#!/bin/sh
# Stage Python, in this machine's own root: PYTHON and TREE are set by the line before.
# Results: "@ python USER NAME STATUS SUMMARY", and "@ failure USER TEXT" for what failed.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
export NETLESS_MUST_ISOLATE=1
cd "$TREE"

words() { tr -c '[:alnum:]=:.,/()\n-' '_' | tr '\n' ' '; }

# NAME COMMAND...
check() {
    local name=$1 status
    shift
    $AS "$@" >/run/out 2>&1
    status=$?
    echo "@ python $USER $name $status $(tail -n 1 /run/out | words)"
    grep -E '^(FAILED|ERROR|E  )' /run/out | tail -n 8 | while read -r line; do
        echo "@ failure $USER $(echo "$line" | words)"
    done
}

as_one() {
    USER=$1 AS=$2
    local pytest="$PYTHON -m pytest -q -p no:cacheprovider --basetemp=/tmp/netless-pytest-$USER"
    check denial $pytest tests/test_denial.py -k "$DENIAL"
    check namespace $pytest tests/test_namespace.py
    check environments $pytest tests/test_environments.py -k "$ENVIRONMENTS"
    check conformance $PYTHON tests/conformance/cpython_subprocess.py -k POSIXProcessTestCase.test_p
    $AS $PYTHON tests/kernels/unix_inside.py 2>&1 | while read -r name answer; do
        echo "@ inside $USER $name $(echo "$answer" | words)"
    done
    launcher
}

launcher() {
    # netless-exec for a caller whose AppArmor profile hides the files of namespaces.
    local found
    cat >/run/detached.sh <<EOF
echo "changeprofile detached" >/proc/self/attr/apparmor/current
exec "$(dirname "$PYTHON")/netless-exec" -- readlink /proc/self/ns/net
EOF
    found=$($AS sh /run/detached.sh 2>&1 | tail -n 1)
    case $found in
        "$(readlink /proc/self/ns/net)") found=outside ;;
        net:*) found=isolated ;;
    esac
    echo "@ launcher $USER detached $(echo "$found" | words)"
}

DENIAL="(ipv4 and (python_tcp or python_udp)) or every_kind or preexec_fn or compiled_programs"
ENVIRONMENTS="(test_here or docker_refuses or docker_with or isolation2-rootful or newer_kernels or seccomp_refused or powerless_namespace or test_no_proc) and not processes"

as_one root ""
as_one user "setpriv --reuid=daemon --regid=daemon --clear-groups --reset-env env HOME=/tmp NETLESS_MUST_ISOLATE=1 PYTHONDONTWRITEBYTECODE=1"

# A caller whose AppArmor profile has no rule "userns,".
if grep -q userns_create /sys/kernel/security/apparmor/features/namespaces/mask; then
    cat >/run/confined.sh <<EOF
echo "changeprofile without_userns" >/proc/self/attr/apparmor/current
exec $PYTHON -c "import netless; print(netless.probe().error.cause)"
EOF
    echo "@ cause $($AS sh /run/confined.sh 2>&1 | tail -n 1 | words)"
fi
echo "@ end"
echo o >/proc/sysrq-trigger
sleep 60
