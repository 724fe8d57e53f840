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

# SIGTERM comes five minutes before the end: a checkpoint is saved, from which the same job continues: submitted again, or
# requeued by Slurm after a preemption or the loss of a node.
set -euo pipefail
: "${DATA:=s3://my-bucket/tokens}" "${STORE:=s3://my-bucket/runs/first}" "${OUTPUT:=runs/first}"
: "${GPUS:=${SLURM_GPUS_ON_NODE:-8}}"

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export OMP_NUM_THREADS=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # else torchrun on a machine that comes back never joins

# Without --kill-on-bad-exit, torchrun on the machine that is left waits for one that comes back.
srun --kill-on-bad-exit=0 torchrun \
	--nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$GPUS" --max-restarts 3 \
	--rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:29500" \
	-m trainer train --data "$DATA" --output "$OUTPUT" --checkpoint-store "$STORE" --auto-resume \
	--parallel fsdp --max-steps 100000 --batch-size 16 --total-batch-size 512
