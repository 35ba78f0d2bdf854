# One container per node, in which torchrun starts the node's ranks. This torch prefixes lines with the local rank: `[default0]`.
ranks() {
  prepare
  record
  [ "$ranks_per_node" -eq 1 ] || default OMP_NUM_THREADS 1 # as torchrun does, which prints five lines about it
  inside torchrun --nnodes="$nodes" --nproc_per_node="$ranks_per_node" \
    --rdzv_id="$job" --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT" \
    --tee=3 --log_dir="$logs/torchrun" "${program[@]}"
}
