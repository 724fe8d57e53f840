#!/bin/bash
# Training on two machines with eight GPUs each: sbatch deploy/training/slurm.sh
#SBATCH --job-name=ownlm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@300
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append

# SIGTERM comes five minutes before the end: a checkpoint is saved, from which the same job continues. Slurm puts it back into
# the queue after a preemption or the loss of a node, and the script itself after any other end but success, ten times at most.
# The environment needs the extra of the object store: pip install -c constraints.txt -e '.[s3]'
set -euo pipefail
: "${DATA:=s3://my-bucket/tokens}" "${STORE:=s3://my-bucket/runs/first}" "${OUTPUT:=runs/first}"
: "${GPUS:=${SLURM_GPUS_ON_NODE:-8}}"

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export OMP_NUM_THREADS=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # as with schedulers that replace a machine, see jobset.yaml
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240 # seconds to save a checkpoint; torchrun's 30 may be too few
export OWNLM_CACHE_DIR="${SLURM_TMPDIR:-/tmp}/ownlm-$UID" # a copy of all token files: not in a home that machines share

# srun restarts no task: where torchrun has failed on one machine, the other one would wait for it in vain. Nor does srun know
# sbatch's --cpus-per-task (since Slurm 22.05).
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \
	--nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$GPUS" --max-restarts 3 \
	--rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:29500" \
	-m trainer train --data "$DATA" --output "$OUTPUT" --checkpoint-store "$STORE" --auto-resume \
	--parallel fsdp --max-steps 100000 --batch-size 16 --total-batch-size 512 || {
	code=$?
	[ "${SLURM_RESTART_COUNT:-0}" -lt 10 ] && scontrol requeue "$SLURM_JOB_ID"
	exit "$code"
}
