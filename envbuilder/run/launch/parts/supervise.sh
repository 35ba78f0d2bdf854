# Prints the processes of this job on this node. Each inherits the variable, in whatever session or process group it runs.
job_processes() { grep -lsxzF "ENVBUILDER_JOB=$job" /proc/[0-9]*/environ | cut -d/ -f3; }

signal_job() {
  local pid
  for pid in $(job_processes); do
    kill "-$1" "$pid" 2>/dev/null || :
  done
}

end_job() {
  local waited
  signal_job TERM
  for ((waited = 0; waited < grace * 2; waited++)); do
    [ -n "$(job_processes)" ] || return 0
    sleep 0.5
  done
  say "still running $grace s after TERM: sending KILL"
  signal_job KILL
}

# Prints the commands that reach the nodes, for `envbuilder watch`: none for this machine.
ways() {
  local host
  declare -p ssh_options >/dev/null 2>&1 || return 0
  for host in "${hosts[@]}"; do
    printf '%q ' ssh "${ssh_options[@]}" -o BatchMode=yes -o ConnectTimeout=10 -- "$host"
    echo
  done
}

# Runs a function of this file. It is ended early when our input ends, because the launching machine stops the job or is
# gone, and when another node fails, if they share a file system. No process of the job remains.
supervise() {
  local main watcher code status=0
  exec 3<&0
  (
    export ENVBUILDER_JOB=$job
    "$1"
  ) </dev/null 3<&- &
  main=$!
  {
    while [ ! -e "$logs/failed" ]; do
      code=0
      read -r -t 1 -u 3 || code=$?
      if [ "$code" -gt 0 ] && [ "$code" -le 128 ]; then break; fi # more than 128: the time of 1 s is over
    done
    end_job
  } >/dev/null </dev/null &
  watcher=$!
  wait "$main" || status=$?
  kill "$watcher" 2>/dev/null || :
  signal_job KILL
  if [ "$status" -ne 0 ] && [ -d "$logs" ]; then : >"$logs/failed"; fi
  return "$status"
}
