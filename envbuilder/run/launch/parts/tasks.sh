# One container per rank. Slurm sets a rank's number inside the step, so it is read here.
ranks() {
  prepare
  record
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$ranks_per_node
  inside "${program[@]}"
}
