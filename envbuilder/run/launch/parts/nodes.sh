this_node() { printf '%s%s' "$node_name" "$master_suffix"; }

job=$(date +%Y%m%d-%H%M%S)-$$
logs=$logs-$job
node=$(declare -p "${settings[@]}" MASTER_ADDR MASTER_PORT; declare -f)

# Every node reads from the pipe `life` and gets nothing until it ends: on a failure, on Ctrl-C, and when this machine goes
# down. Then the node ends the job. Through the pipe `ends`, this script gets each node's exit code.
pipes=$(mktemp -d)
trap 'rm -rf "$pipes"' EXIT
mkfifo "$pipes/life" "$pipes/ends" "$pipes/output"
exec 9<>"$pipes/life" 8<>"$pipes/ends"
stop() { exec 9>&-; }
stopped=''
trap 'stopped=130; stop' INT
trap 'stopped=143; stop' TERM HUP

# Runs a function of this file on a node. The node's shell reads the text first, then the pipe.
on_node() {
  local code=0
  trap : TERM HUP # the pipe ends the node, whose last lines are still to come
  reach "${hosts[$1]}" 9>&- 8>&- < <(
    exec 9>&- 8>&-
    printf 'set -euo pipefail\nnode_rank=%s node_name=%q\n%s\nsupervise %s; exit\n' "$1" "${hosts[$1]##*@}" "$node" "$2"
    exec cat "$pipes/life"
  ) || code=$?
  printf '%s %s\n' "$1" "$code" >&8
}

# Runs a function on all nodes at once. A failure ends it on all. Returns the first failure's exit code.
on_every_node() {
  local number left=${#hosts[@]} status=0 code line='' part
  for number in "${!hosts[@]}"; do
    on_node "$number" "$1" 9>&- &
  done
  while [ "$left" -gt 0 ]; do
    # A signal may have come, so no read takes longer than 1 s. It may end within a line.
    IFS= read -r -t 1 -u 8 part || {
      line+=$part
      continue
    }
    read -r number code <<<"$line$part"
    line=''
    left=$((left - 1))
    if [ "$code" -eq 0 ] || [ "$status" -ne 0 ] || [ -n "$stopped" ]; then continue; fi
    status=$code
    if [ "$code" -eq 255 ]; then
      say "${hosts[$number]} does not answer over SSH, or the connection broke"
    else
      say "${hosts[$number]} ended with exit code $code"
    fi
    stop
  done
  return "${stopped:-$status}"
}

say "job $job: $((nodes * ranks_per_node)) ranks on ${hosts[*]}, which meet at $MASTER_ADDR:$MASTER_PORT"
on_every_node preflight || fail "no rank was started, for a node is not ready"
make_logs
watch_ranks
say "all nodes are ready, and the ranks start"
split_by_rank <"$pipes/output" 9>&- 8>&- &
splitter=$!
status=0
on_every_node ranks >"$pipes/output" 2>&1 || status=$?
stop # else the processes that read `life` here keep the output open
wait "$splitter"
say_end "$status" "$logs"
exit "$status"
