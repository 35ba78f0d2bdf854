MASTER_ADDR=${hosts[0]##*@}$master_suffix
MASTER_PORT=$((20000 + $$ % 12000)) # below the ephemeral ports
this_node() { printf '%s%s' "$node_name" "$master_suffix"; }

job=$(date +%Y%m%d-%H%M%S)-$$
logs=$logs-$job
make_logs
mkfifo -m 600 "$logs/output"
trap 'rm -f "$logs/output"' EXIT
{
  printf 'set -euo pipefail\nnode_rank=$1 node_name=$2\n'
  declare -p "${settings[@]}" MASTER_ADDR MASTER_PORT
  declare -f
  printf 'supervise "$3"; exit\n'
} >"$logs/node.sh"

# Every node reads its input from pdsh and gets nothing. When pdsh ends, the input ends, and the node ends the job.
stopped=''
trap 'stopped=130; kill "$fan" 2>/dev/null || :' INT
trap 'stopped=143; kill "$fan" 2>/dev/null || :' TERM HUP
export PDSH_SSH_ARGS_APPEND="-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 ${ssh_options[*]}"
list=$(IFS=, && printf '%s' "${hosts[*]}")

# Runs a function of this file on all nodes at once. The first that fails writes the file `failed`, which ends the others.
on_every_node() {
  local code=0
  setsid pdsh -S -N -b -R ssh -f "${#hosts[@]}" -w "$list" "bash $(printf %q "$logs/node.sh") %n %h $1" </dev/null &
  fan=$!
  wait "$fan" || code=$?
  while kill -0 "$fan" 2>/dev/null; do
    code=0
    wait "$fan" || code=$?
  done
  return "${stopped:-$code}"
}

say "job $job: $((nodes * ranks_per_node)) ranks on ${hosts[*]}, which meet at $MASTER_ADDR:$MASTER_PORT"
on_every_node preflight || fail "no rank was started, for a node is not ready"
watch_ranks
say "all nodes are ready, and the ranks start"
split_by_rank <"$logs/output" &
splitter=$!
status=0
on_every_node ranks >"$logs/output" 2>&1 || status=$?
wait "$splitter"
say_end "$status" "$logs"
exit "$status"
