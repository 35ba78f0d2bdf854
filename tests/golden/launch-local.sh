#!/usr/bin/env bash
# cpu (torch 2.13.0): 2 ranks on 1 nodes. `bash THIS-FILE` runs it.
# Written by envbuilder VERSION; it needs nothing of envbuilder to run, and you may change it.
# shellcheck disable=SC2317,SC2329,SC2154,SC2034,SC2016 # settings and functions are also used on the nodes, by name
set -euo pipefail

environment=/shared/env/cpu.sif
sif_bytes=395354112
sif_sha256=abababababababababababababababababababababababababababababababab
program=(-m envbuilder_smoke --ranks 2)
nodes=1
ranks_per_node=2
gpus=0
folder=/home/me/project/src
project=/home/me/project
logs=/home/me/project/src/logs/cpu
binds=()
variables=()
modules=()
apptainer=apptainer
node_scratch=''
shared_scratch=''
master_suffix=''
driver_floor=''
least_free_mb=1024
grace=120
settings=(environment sif_bytes sif_sha256 program nodes ranks_per_node gpus folder project logs binds variables modules apptainer node_scratch shared_scratch master_suffix driver_floor least_free_mb grace job)

say() { printf 'launch: %s: %s\n' "$(uname -n)" "$*" >&2; }

# What the program had no part in ends with the exit code of envbuilder for a job that could not be started.
fail() {
  say "$*"
  exit 9
}

# The first of these folders that is there: compile caches belong on the node, for a shared file system is slow at many
# small files, and homes are small.
find_scratch() {
  local place
  for place in "$node_scratch" "${SLURM_TMPDIR-}" "${TMPDIR-}" /tmp; do
    if [ -z "$place" ] || [ ! -d "$place" ] || [ ! -w "$place" ]; then continue; fi
    scratch=$place/envbuilder-$UID
    mkdir -m 700 "$scratch" 2>/dev/null || [ -d "$scratch" ] || fail "cannot write to $place: is it full?"
    [ -O "$scratch" ] || fail "$scratch belongs to another user, who could put code into your caches"
    return
  done
  fail "no folder of this node can be written to; tried \"$node_scratch\", \$SLURM_TMPDIR, \$TMPDIR and /tmp"
}

# A value of your own stays as it is.
default() { [ -n "${!1-}" ] || export "$1=$2"; }

prepare() {
  local pair
  cd "$folder" || fail "the folder $folder is not on this node"
  if [ ${#modules[@]} -gt 0 ]; then
    set +u # the site's own files may not be made for it
    # shellcheck source=/dev/null
    type module >/dev/null 2>&1 || . /etc/profile
    module load "${modules[@]}" || fail "cannot load the modules ${modules[*]}"
    set -u
  fi
  find_scratch
  export PYTHONUNBUFFERED=1 APPTAINERENV_PYTHONNOUSERSITE=1 # the user's own packages would shadow the environment's
  default TORCH_EXTENSIONS_DIR "$scratch/torch_extensions"
  default TRITON_CACHE_DIR "$scratch/triton"
  default TORCHINDUCTOR_CACHE_DIR "$scratch/inductor"
  default CUDA_CACHE_PATH "$scratch/cuda"
  default MPLCONFIGDIR "$scratch/matplotlib"
  if [ -n "$shared_scratch" ]; then
    default HF_HOME "$shared_scratch/huggingface"
    default TORCH_HOME "$shared_scratch/torch"
  fi
  for pair in "${variables[@]}"; do
    default "${pair%%=*}" "${pair#*=}"
  done
}

# What a node must have. Said before any rank starts, it is one line; later it is a hang or a thousand lines.
preflight() {
  local free driver seen
  prepare
  find_environment
  free=$(df -Pm "$scratch" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$least_free_mb" ] || fail "$scratch has $free MB free, and $least_free_mb MB are wanted for caches"
  if [ "$gpus" -gt 0 ]; then
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader) || fail "the NVIDIA driver does not answer: ${driver:-nvidia-smi is not there}"
    seen=$(wc -l <<<"$driver")
    [ "$seen" -ge "$gpus" ] || fail "$gpus GPUs are wanted, and $seen are here"
    printf '%s\n%s\n' "$driver_floor" "${driver%%$'\n'*}" | sort --check=silent --version-sort ||
      fail "driver ${driver%%$'\n'*} is too old: this CUDA needs $driver_floor"
  fi
  if [ "${SLURM_NODEID-${node_rank-0}}" -eq 0 ] && (: <>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; then
    fail "port $MASTER_PORT is in use on $MASTER_ADDR, where the ranks are to meet"
  fi
  (inside python -m envbuilder_smoke --check) || fail "the environment in $environment is not whole, or does not fit this node"
}

# Copies lines that begin with a rank into a file of that rank, and passes all of them on.
split_by_rank() {
  trap '' TERM INT HUP # its end is the end of its input
  mkdir -p "$logs"
  awk -v logs="$logs" '
    { print; fflush() }
    match($0, /^ *[0-9]+: (\[[a-z_]+[0-9]+\]:)?/) {
      rank = substr($0, 1, RLENGTH)
      gsub(/[^0-9]+/, "-", rank)
      gsub(/^-|-$/, "", rank)
      file = logs "/rank-" rank ".log"
      print substr($0, RLENGTH + 1) >file
      fflush(file)
    }'
}

# Becomes the program given, in the environment.
inside() {
  local -a options=()
  local bind
  [ "$gpus" -eq 0 ] || options+=(--nv)
  for bind in "$project" "$scratch" "${binds[@]}"; do
    [ ! -e "${bind%%:*}" ] || options+=(--bind "$bind")
  done
  exec "$apptainer" exec "${options[@]}" "$environment" "$@"
}

# Whether the SIF is the file that this script was written for. To read all of it takes seconds, or minutes on a busy file
# system, so a node remembers in its scratch what it has read, for as long as the file has the same size, times and inode. The time
# of its last change (%Z) cannot be set by hand.
check_sif() {
  local found known=$scratch/sif-$sif_sha256 digest
  found=$(stat -Lc '%s %d:%i %.9Y %.9Z' "$environment")
  if [ "${found%% *}" = "$sif_bytes" ]; then
    if [ "$(cat "$known" 2>/dev/null)" = "$found" ]; then return; fi
    digest=$(sha256sum <"$environment")
    digest=${digest%% *}
    if [ "$digest" = "$sif_sha256" ]; then
      printf '%s\n' "$found" 2>/dev/null >"$known" || :
      return
    fi
  fi
  fail "$environment is not the file that this script was written for: it has ${found%% *} bytes${digest:+, sha256 $digest}"
}

find_environment() {
  command -v "$apptainer" >/dev/null || fail "there is no program $apptainer here"
  [ -r "$environment" ] || fail "cannot read $environment: is it on a file system that this node has?"
  check_sif
}

# One container on each node, in which torchrun starts the node's ranks.
ranks() {
  prepare
  export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='${rank}: ' TORCH_ELASTIC_SHUTDOWN_TIMEOUT="$grace"
  inside torchrun --nnodes="$nodes" --nproc_per_node="$ranks_per_node" --local_addr="$(this_node)" \
    --rdzv_id="$job" --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT" \
    --tee=3 --log_dir="$logs/torchrun" "${program[@]}"
}

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

hosts=(localhost)
MASTER_ADDR=127.0.0.1
MASTER_PORT=$((20000 + $$ % 12000)) # below the ports that connections get by themselves
while (: <>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; do
  MASTER_PORT=$((MASTER_PORT + 1))
done

# Ctrl-C is for us alone.
reach() { setsid --wait bash -s; }

this_node() { printf '%s%s' "$node_name" "$master_suffix"; }

job=$(date +%Y%m%d-%H%M%S)-$$
logs=$logs-$job
node=$(declare -p "${settings[@]}" MASTER_ADDR MASTER_PORT; declare -f)

# As long as we live, and until we close it, every node can read from the first pipe and gets nothing. Its end is the end of
# the job there: on a failure, on Ctrl-C, and when this machine goes down. Through the second we hear how each node ended.
pipes=$(mktemp -d)
trap 'rm -rf "$pipes"' EXIT
mkfifo "$pipes/life" "$pipes/ends" "$pipes/output"
exec 9<>"$pipes/life" 8<>"$pipes/ends"
stop() { exec 9>&-; }
stopped=''
trap 'stopped=130; stop' INT
trap 'stopped=143; stop' TERM HUP

# Has the node of that number do a function of this file: first goes the text, then the pipe.
on_node() {
  local code=0
  trap : TERM HUP # the end comes through the pipe, and there is a last line to come
  reach "${hosts[$1]}" 9>&- 8>&- < <(
    exec 9>&- 8>&-
    printf 'set -euo pipefail\nnode_rank=%s node_name=%q\n%s\nattend %s; exit\n' "$1" "${hosts[$1]##*@}" "$node" "$2"
    exec cat "$pipes/life"
  ) || code=$?
  printf '%s %s\n' "$1" "$code" >&8
}

# Has every node do it at once; when one fails, ends it on all. Returns the first failure's exit code.
on_every_node() {
  local number left=${#hosts[@]} status=0 code
  for number in "${!hosts[@]}"; do
    on_node "$number" "$1" 9>&- &
  done
  while [ "$left" -gt 0 ]; do
    read -r -t 1 -u 8 number code || continue # a signal may have come
    left=$((left - 1))
    if [ "$code" -eq 0 ] || [ "$status" -ne 0 ] || [ -n "$stopped" ]; then continue; fi
    status=$code
    if [ "$code" -eq 255 ]; then
      say "${hosts[$number]} does not answer over SSH, or no more"
    else
      say "${hosts[$number]} ended with exit code $code"
    fi
    stop
  done
  return "${stopped:-$status}"
}

say "job $job: $((nodes * ranks_per_node)) ranks on ${hosts[*]}, which meet at $MASTER_ADDR:$MASTER_PORT"
on_every_node preflight || fail "no rank was started, for a node is not ready"
split_by_rank <"$pipes/output" 9>&- 8>&- &
splitter=$!
status=0
on_every_node ranks >"$pipes/output" 2>&1 || status=$?
stop # what waits for it on our side holds the output open
wait "$splitter"
say "job $job: the ranks ended with exit code $status; logs in $logs"
exit "$status"
