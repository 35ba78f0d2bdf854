# One container per node, in which torch's launcher before 1.10 starts the node's ranks.
ranks() {
  prepare
  inside python -m torch.distributed.launch --use_env --nnodes="$nodes" --nproc_per_node="$ranks_per_node" \
    --node_rank="${SLURM_NODEID-${node_rank-0}}" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" "${program[@]}"
}
