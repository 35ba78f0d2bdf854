this_node() { printf '%s%s' "$SLURMD_NODENAME" "$master_suffix"; }

# The ranks meet on the first node of this job, as Slurm names it: the container knows nothing of Slurm, and a guess such as
# localhost would make every node a world of its own.
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
job=$SLURM_JOB_ID
logs=$logs-$job
export MASTER_ADDR=${hosts%%$'\n'*}$master_suffix
export MASTER_PORT=$((20000 + job % 12000)) # below the ports that connections get by themselves
# Since 22.05 srun does not take it from the job.
[ -z "${SLURM_CPUS_PER_TASK-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

# What a node needs to know goes with each step, so that it does not matter what `sbatch --export` said.
node=$(declare -p "${settings[@]}" MASTER_ADDR MASTER_PORT; declare -f)
srun=(srun --export=ALL)

say "job $job: $((nodes * ranks_per_node)) ranks on ${hosts//$'\n'/ }, which meet at $MASTER_ADDR:$MASTER_PORT"
"${srun[@]}" --kill-on-bad-exit=0 --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 bash -euc "$node; preflight" ||
  fail "no rank was started, for a node is not ready"

(
  trap : TERM # a cancelled job tells every process; the last lines are still to come
  "${srun[@]}" --kill-on-bad-exit=1 "${srun_options[@]}" bash -euc "$node; ranks" 2>&1 | split_by_rank
) &
step=$!
# Before the time is up Slurm tells this script alone, which tells the ranks. Until the time of --signal has gone by they can
# write what they need.
trap 'say "told to end: TERM to every rank"; scancel --signal=TERM "$job" 2>/dev/null || :' TERM
status=0
wait "$step" || status=$?
while kill -0 "$step" 2>/dev/null; do # the trap has ended the wait
  status=0
  wait "$step" || status=$?
done
say "job $job: the ranks ended with exit code $status; logs in $logs"
exit "$status"
