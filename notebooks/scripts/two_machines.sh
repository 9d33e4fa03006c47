#!/usr/bin/env bash
# Train on two machines. Call it on both, in any order, within ten minutes:
#   on the first     notebooks/scripts/two_machines.sh 0 FIRST --epochs 5
#   on the second    notebooks/scripts/two_machines.sh 1 FIRST --epochs 5
# FIRST is the first machine's name or address as the second one sees it; the other arguments go
# to train.py, and are the same on both. If a rank dies, all start again from the newest checkpoint.
# Adapt by setting:
#   RANKS      ranks on each machine, one a GPU (1)
#   MACHINES   how many machines there are (2)
#   PORT       a port of FIRST that the firewall lets through and no program has (29400)
#   INTERFACE  the network card to use, such as eth0 or ib0 (see `ip address`); needed if the
#              machines' own names lead to 127.0.1.1, as on many a Debian or Ubuntu
#   ADDRESS    this machine's address, if the other one does not know its name
set -eu

if [ $# -lt 2 ]; then
    echo "usage: $0 NUMBER FIRST [arguments of train.py]; NUMBER is 0 on the machine FIRST" >&2
    exit 2
fi
number=$1 first=$2
shift 2

if [ -n "${INTERFACE:-}" ]; then
    export GLOO_SOCKET_IFNAME=$INTERFACE NCCL_SOCKET_IFNAME=$INTERFACE
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

here=$(dirname "$0")
export PATH="${VENV:-$here/../../.venv}/bin:$PATH" # adapt: where python and torch are
# Each start gets a store of its own. In one that is shared, a restarted rank may read the address
# of a dead one, and fail or wait for minutes (pytorch issue 135712).
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# is_host: torchrun would guess which machine FIRST is, and often wrongly; then all wait for ever.
exec torchrun --nnodes="${MACHINES:-2}" --nproc-per-node="${RANKS:-1}" --max-restarts=3 \
    --rdzv-backend=c10d --rdzv-endpoint="$first:${PORT:-29400}" --rdzv-id=train \
    --rdzv-conf="is_host=$((number == 0))" ${ADDRESS:+--local-addr="$ADDRESS"} \
    "$here/train.py" "$@"
