"""Two hosts on one machine, each with a network of its own, and a cable between them.

Linux makes them for a user who may unshare networks; all of it is gone with the last process.
"""

import shutil
import subprocess

ADDRESSES, CABLE = ("10.77.0.1", "10.77.0.2"), "cable"
PROGRAMS = ("unshare", "nsenter", "ip")

# "$@" runs on both hosts, and finds in HOST_NUMBER 0 or 1, and in ADDRESS its own address.
_SCRIPT = f"""
set -eu
unshare --net sleep 3000 &
other=$!
trap 'kill $other' EXIT
there="nsenter --net=/proc/$other/ns/net"
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
ip link add {CABLE} type veth peer name {CABLE} netns $other
for number in 0 1; do
    [ $number = 0 ] && here= || here=$there
    $here ip link set lo up
    $here ip address add 10.77.0.$((number + 1))/24 dev {CABLE}
    $here ip link set {CABLE} up
done
HOST_NUMBER=1 ADDRESS={ADDRESSES[1]} $there "$@" &
second=$!
HOST_NUMBER=0 ADDRESS={ADDRESSES[0]} "$@"
wait $second
"""
_APART = ("unshare", "--user", "--map-root-user", "--net", "--kill-child", "bash", "-c", _SCRIPT)


def on_both(*command: object) -> list[str]:
    """The command that runs `command` on both hosts, with HOST_NUMBER (0 or 1) and ADDRESS in its
    environment, and ends when both have ended."""
    return [*_APART, "hosts", *map(str, command)]


def why_not(*programs: str) -> str | None:
    """What is missing for two hosts that also have these programs, or None."""
    missing = [name for name in (*PROGRAMS, *programs) if not shutil.which(name)]
    if missing:
        return f"no {', '.join(missing)} on PATH: Linux's util-linux and iproute2 have them"
    tried = subprocess.run(on_both("true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"networks of one's own are not permitted here: {tried.stderr.strip()}"
    return None
