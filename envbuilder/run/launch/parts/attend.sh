# The processes of this job on this node. Each inherits the mark, whatever session or group it made for itself.
ours() { grep -lsxzF "ENVBUILDER_JOB=$job" /proc/[0-9]*/environ | cut -d/ -f3; }

signal_ours() {
  local pid
  for pid in $(ours); do
    kill "-$1" "$pid" 2>/dev/null || :
  done
}

end_ours() {
  local waited
  signal_ours TERM
  for ((waited = 0; waited < grace * 2; waited++)); do
    [ -n "$(ours)" ] || return 0
    sleep 0.5
  done
  say "not ended $grace s after TERM: KILL"
  signal_ours KILL
}

# Runs a function of this file to its end, or until our input ends, which says that the other side is gone or has had
# enough, or until another node has failed, where they share a file system. Nothing of it is left then.
attend() {
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
      if [ "$code" -gt 0 ] && [ "$code" -le 128 ]; then break; fi # more than 128: a second has gone by
    done
    end_ours
  } >/dev/null </dev/null &
  watcher=$!
  wait "$main" || status=$?
  kill "$watcher" 2>/dev/null || :
  signal_ours KILL
  if [ "$status" -ne 0 ] && [ -d "$logs" ]; then : >"$logs/failed"; fi
  return "$status"
}
