#!/usr/bin/env bash
# Train under Slurm. Submit it from the project's folder:
#   sbatch notebooks/scripts/slurm.sh --epochs 5
# Arguments go to train.py. Adapt these lines; a GPU for each task, or no GPUs at all:
#SBATCH --job-name=d2lpar
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
##SBATCH --gpus-per-node=2       (with one # it counts)
##SBATCH --partition=gpu
#SBATCH --time=00:30:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue

set -eu
cd "$SLURM_SUBMIT_DIR" # $0 is a copy of this script in a folder of Slurm's
export PATH="${VENV:-$PWD/.venv}/bin:$PATH" # adapt: where python and torch are
train=notebooks/scripts/train.py

# srun does not take over --cpus-per-task in all versions of Slurm, so it is told.
by_srun() { # Slurm starts each rank, and d2lpar.launch reads Slurm's variables
    srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" python "$train" "$@"
}

by_torchrun() { # Slurm starts torchrun once a node, and torchrun the ranks
    first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
    export OMP_NUM_THREADS="$SLURM_CPUS_PER_TASK"
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # why: see one_machine.sh
    srun --kill-on-bad-exit=1 --ntasks="$SLURM_NNODES" --ntasks-per-node=1 \
        --cpus-per-task="$((SLURM_CPUS_PER_TASK * SLURM_NTASKS_PER_NODE))" \
        torchrun --nnodes="$SLURM_NNODES" --nproc-per-node="$SLURM_NTASKS_PER_NODE" \
        --max-restarts=3 --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" \
        --rdzv-endpoint="$first:$((15000 + SLURM_JOB_ID % 10000))" "$train" "$@"
}

# If a rank or a node dies, the rest is ended, and all start again from the newest checkpoint.
for attempt in 1 2 3 4; do
    if "by_${LAUNCHER:-srun}" "$@"; then # LAUNCHER=torchrun sbatch … for the other way
        exit 0
    fi
    echo "attempt $attempt failed" >&2
done
exit 1
