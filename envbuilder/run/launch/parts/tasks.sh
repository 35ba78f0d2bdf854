# One container for each rank. Slurm tells a rank its number in the step, so it is read here and not before.
ranks() {
  prepare
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$ranks_per_node
  inside "${program[@]}"
}
