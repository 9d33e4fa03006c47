#!/usr/bin/env bash
# Train on this machine:   RANKS=2 notebooks/scripts/one_machine.sh --epochs 5
# Arguments go to train.py. Adapt: RANKS, one a GPU, or a few for a CPU with many cores.
# If a rank dies, torchrun starts all of them again, three times at most; they go on from the
# newest checkpoint.
set -eu

ranks=${RANKS:-2}
cores=$(getconf _NPROCESSORS_ONLN)
# Unless told, torchrun would give each rank one thread, and say so in a warning.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}"

here=$(dirname "$0")
export PATH="${VENV:-$here/../../.venv}/bin:$PATH" # adapt: where python and torch are
# Each start gets a store of its own. In one that is shared, a restarted rank may read the address
# of a dead one, and fail or wait for minutes (pytorch issue 135712).
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# --standalone: a free port of this machine, so that two trainings do not meet by mistake.
exec torchrun --standalone --nproc-per-node="$ranks" --max-restarts=3 "$here/train.py" "$@"
