this_node() { printf '%s%s' "$SLURMD_NODENAME" "$master_suffix"; }

# The rendezvous is the first node of this job, as Slurm names it. A container cannot ask Slurm, and with localhost each node
# would train alone.
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
job=$SLURM_JOB_ID
logs=$logs-$job
export MASTER_ADDR=${hosts%%$'\n'*}$master_suffix
export MASTER_PORT=$((20000 + job % 12000)) # below the ephemeral ports
# Since Slurm 22.05, srun does not inherit it from the job.
[ -z "${SLURM_CPUS_PER_TASK-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

# Each step carries the settings of its node, so `sbatch --export` does not matter.
node=$(declare -p "${settings[@]}" MASTER_ADDR MASTER_PORT; declare -f)
srun=(srun --export=ALL)

# Prints the command that reaches the nodes, for `envbuilder watch`.
ways() { echo "srun --jobid=$job --overlap --nodes=$nodes --ntasks=$nodes --ntasks-per-node=1 --quiet"; }

say "job $job: $((nodes * ranks_per_node)) ranks on ${hosts//$'\n'/ }, which meet at $MASTER_ADDR:$MASTER_PORT"
"${srun[@]}" --kill-on-bad-exit=0 --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 bash -euc "$node; preflight" ||
  fail "no rank was started, for a node is not ready"
make_logs
watch_ranks
say "all nodes are ready, and the ranks start"

(
  trap : TERM # a cancelled job signals every process; the last lines are still to come
  "${srun[@]}" --kill-on-bad-exit=1 "${srun_options[@]}" bash -euc "$node; ranks" 2>&1 | split_by_rank
) &
step=$!
# Before the time limit, Slurm signals only this script, which signals the ranks. They have the time of --signal to write a
# checkpoint.
end() {
  if [ "$(squeue --noheader --job="$job" --format=%T 2>/dev/null)" = RUNNING ]; then
    say "the time limit of the job is $grace s away: sending TERM to every rank"
  else
    say "the job was cancelled: sending TERM to every rank"
  fi
  scancel --signal=TERM "$job" 2>/dev/null || :
}
trap end TERM
status=0
wait "$step" || status=$?
while kill -0 "$step" 2>/dev/null; do # the trap ended the wait
  status=0
  wait "$step" || status=$?
done
say_end "$status" "$(readlink "/proc/$$/fd/1")" "$logs" # the log of the job, and those of the ranks with their dumps
exit "$status"
