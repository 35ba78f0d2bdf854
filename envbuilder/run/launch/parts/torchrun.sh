# One container per node, in which torchrun starts the node's ranks.
ranks() {
  prepare
  record
  [ "$ranks_per_node" -eq 1 ] || default OMP_NUM_THREADS 1 # as torchrun does, which prints five lines about it
  export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='${rank}: ' TORCH_ELASTIC_SHUTDOWN_TIMEOUT="$grace"
  inside torchrun --nnodes="$nodes" --nproc_per_node="$ranks_per_node" --local_addr="$(this_node)" \
    --rdzv_id="$job" --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT" \
    --tee=3 --log_dir="$logs/torchrun" "${program[@]}"
}
