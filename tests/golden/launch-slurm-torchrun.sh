#!/usr/bin/env bash
# a100 (torch 2.6.0): 8 ranks on 2 nodes. `sbatch THIS-FILE` submits it.
# Written by envbuilder VERSION; it runs without envbuilder, and you may edit it.
# shellcheck disable=SC2317,SC2329,SC2154,SC2034,SC2016 # the nodes use settings and functions by name
#SBATCH --job-name=a100
#SBATCH --partition=gpu
#SBATCH --account=me
#SBATCH --time=02:00:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=a100:4
#SBATCH --signal=B:TERM@120
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --exclusive

set -euo pipefail

environment='/shared/my env/a100.sif'
sif_bytes=395354112
sif_sha256=abababababababababababababababababababababababababababababababab
sif_state=''
machine=
copy=''
program=(train.py --text 'it'"'"'s $HOME')
nodes=2
ranks_per_node=4
gpus=4
folder=/home/me/project/src
script=/home/me/project/src/train.py
project=/home/me/project
logs=/home/me/project/src/logs/a100
binds=("${PROJECT:+$PROJECT/data set}" /scratch:/scratch:ro "${SCRATCH:+$SCRATCH}")
variables=(NCCL_DEBUG=WARN)
modules=(apptainer/1.3)
apptainer=apptainer
left_out=(CC CXX CPP AR LD LDSHARED RANLIB CUDAHOSTCXX CUDACXX NVCC_CCBIN PYTORCH_NVCC TRITON_PTXAS_PATH COMPILER_PATH GCC_EXEC_PREFIX TORCH_CUDA_ARCH_LIST LD_PRELOAD LD_AUDIT PYTHONHOME PYTHONPLATLIBDIR PYTHONSTARTUP PYTHONUSERBASE PYTHONEXECUTABLE BASH_ENV ENV PROMPT_COMMAND VIRTUAL_ENV 'CONDA_*' _CE_CONDA _CE_M)
untold=(PYTHONSTARTUP PYTHONUSERBASE PYTHONEXECUTABLE BASH_ENV ENV PROMPT_COMMAND VIRTUAL_ENV 'CONDA_*' _CE_CONDA _CE_M SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE XDG_RUNTIME_DIR)
node_scratch=''
shared_scratch="${SCRATCH:+$SCRATCH}"
master_suffix=i
driver_floor=525.60.13
least_free_mb=1024
grace=120
recorder=('TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_FR_BUFFER_SIZE' 'TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_FR_DUMP_ON_TIMEOUT' 'TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_FR_DUMP_TEMP_FILE' 'TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_FR_DEBUG_INFO_PIPE_FILE')
srun_options=(--nodes=2 --ntasks=2 --ntasks-per-node=1)
watcher=()
settings=(environment sif_bytes sif_sha256 sif_state machine copy program nodes ranks_per_node gpus folder script project logs binds variables modules apptainer left_out untold node_scratch shared_scratch master_suffix driver_floor least_free_mb grace recorder job)

# Drops variables of the machine's conda, modules and tools that would bring another Python, other libraries or start files
# into the environment. Of PYTHONPATH, the project's own folders stay. APPTAINERENV_NAME passes one on purpose. The SIF leaves
# out the same and more. Adds the names to `lost`, except those that many machines set for every user.
keep_out() {
  local name entry kept='' entries=() IFS='|'
  local pattern="@(${left_out[*]})" silent="@(${untold[*]})"
  unset IFS
  if [ "${ENVBUILDER_SHELL-}" = off ]; then return; fi
  for name in $(compgen -e); do
    # shellcheck disable=SC2053 # patterns
    if [[ $name == $pattern ]]; then
      unset "$name"
      # shellcheck disable=SC2053
      [[ $name == $silent ]] || lost+=" $name"
    fi
  done
  if [ -z "${PYTHONPATH-}" ]; then return; fi
  IFS=: read -ra entries <<<"$PYTHONPATH"
  for entry in "${entries[@]}"; do
    case $entry/ in
      / | */site-packages/* | */dist-packages/*) ;;
      "$1"/*) [ "$1" = "${HOME-}" ] || kept+=:$entry ;;
      /*) ;;
      *) kept+=:$entry ;;
    esac
  done
  [ "${kept#:}" = "$PYTHONPATH" ] || lost+=' PYTHONPATH'
  if [ -n "$kept" ]; then export PYTHONPATH=${kept#:}; else unset PYTHONPATH; fi
}

say() { printf 'launch: %s: %s\n' "$(uname -n)" "$*" >&2; }

# Says how the ranks ended, and the cause of a failure, which is in the logs and folders after $1. One without a line is not named.
say_end() {
  local place="logs in $logs"
  [ -z "${watching-}" ] || kill "$watching" 2>/dev/null || :
  grep -rqs --exclude=launcher.log . "$logs" || place='no rank has a log of its own'
  case $1 in
    0) say "job $job: all ranks ended well; $place" ;;
    137 | 143) say "job $job: the ranks ended with exit code $1, as all do when one of them fails; $place" ;;
    *) say "job $job: the ranks ended with exit code $1; $place" ;;
  esac
  [ "$1" -ne 0 ] || return 0
  shift
  if ! grep -rqs . "$@"; then
    say "the cause is in the lines above"
  elif say_cause "$@"; then
    say "| more: envbuilder diagnose ${*@Q}"
  else
    say "the cause: envbuilder diagnose ${*@Q}"
  fi
}

# Says the cause in a few lines, by the program that `launch` put beside the logs, with a Python of this machine or else of the
# environment. It takes 3 s at most. Fails where it has no answer.
say_cause() {
  local lines line finder=${logs%/*}/diagnose.pyz
  [ -f "$finder" ] || return 1
  lines=$(timeout --signal=KILL 3 bash -c "$(declare -p "${settings[@]}"; declare -f)"'
    python3 -I "$0" --brief "$@" || { prepare && inside python -I "$0" --brief "$@"; }' "$finder" "$@" 2>/dev/null) || return 1
  while IFS= read -r line; do say "| $line"; done <<<"$lines"
}

# Ends with envbuilder's exit code for a job that could not start.
fail() {
  say "$*"
  exit 9
}

# Makes the folder $1, or takes the one that is there: this user's own, and no link, which another user may have planted.
own_folder() { mkdir -m "$2" "$1" 2>/dev/null || { [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ]; }; }

# Whether another user may exchange names in the folder $1: its owner, or who may write it without the sticky bit. Root's
# number is another one in a container without root.
is_open() {
  local owner mode outside root=0
  read -r _ outside _ </proc/self/uid_map
  [ "$outside" -eq 0 ] || read -r root </proc/sys/kernel/overflowuid
  read -r owner mode < <(stat -Lc '%u %a' "$1")
  ((owner != 0 && owner != root && owner != UID)) || (((8#$mode & 8#22) > 0 && (8#$mode & 8#1000) == 0))
}

# Chooses the first folder that can be written. Compile caches belong on the node: a shared file system is slow with many
# small files, and homes are small.
find_scratch() {
  local place
  for place in "$node_scratch" "${SLURM_TMPDIR-}" "${TMPDIR-}" /tmp; do
    if [ -z "$place" ] || [ ! -d "$place" ] || [ ! -w "$place" ]; then continue; fi
    if is_open "$place"; then
      say "$place is passed over: other users could put code into your caches there; \`chmod +t $place\` prevents it"
      continue
    fi
    scratch=$place/envbuilder-$UID
    own_folder "$scratch" 700 || [ -e "$scratch" ] || [ -L "$scratch" ] || fail "cannot write to $place: is it full?"
    own_folder "$scratch" 700 || fail "$scratch belongs to another user or is a link: others could put code into your caches"
    return
  done
  fail "no folder of this node can be written to; tried \"$node_scratch\", \$SLURM_TMPDIR, \$TMPDIR and /tmp"
}

# Sets a variable unless the user has set it.
default() { [ -n "${!1-}" ] || export "$1=$2"; }

prepare() {
  local name pair
  cd "$folder" || fail "the folder $folder is not on this node"
  if [ ${#modules[@]} -gt 0 ]; then
    set +u # the site's files may use unset variables
    # shellcheck source=/dev/null
    type module >/dev/null 2>&1 || . /etc/profile
    module load "${modules[@]}" || fail "cannot load the modules ${modules[*]}"
    set -u
  fi
  [ -z "${project-}" ] || keep_out "$project" # after the modules, which may set PYTHONPATH; builds have no project
  export ENVBUILDER_SHELL=${ENVBUILDER_SHELL:-quiet} # each rank starts the environment
  find_scratch
  export PYTHONUNBUFFERED=1 ENVBUILDER_WHOLE_LINES=1 # lines that come at once, and whole among those of other ranks
  export APPTAINERENV_PYTHONNOUSERSITE=1 # the user's own packages would shadow the environment's
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
    name=${pair%%=*}
    [ -n "${!name-}" ] || default "APPTAINERENV_$name" "${pair#*=}" # on purpose, so the SIF does not leave it out
    default "$name" "${pair#*=}"
  done
}

# Checks this node before any rank starts. Later, the same mistake is a hang or a thousand lines.
preflight() {
  local free gpu_check node=${SLURM_NODEID-${node_rank-0}} shell=${ENVBUILDER_SHELL-} lost=''
  check_paths
  prepare
  if [ "$node" -eq 0 ] && [ -z "$shell" ]; then # once a job
    [ -z "$lost" ] || say "kept out of the environment:$lost; APPTAINERENV_NAME passes a variable"
    ENVBUILDER_SHELL='' # the environment names what else it leaves out
  fi
  { read -r && read -r _ _ _ free _; } < <(df -Pm "$scratch")
  [ "$free" -ge "$least_free_mb" ] || fail "$scratch has $free MB free, and $least_free_mb MB are wanted for caches"
  if [ "$node" -eq 0 ] && (: <>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; then
    fail "port $MASTER_PORT is in use on $MASTER_ADDR, where the ranks are to meet"
  fi
  # The driver answers after a second or more where no process holds it open. No code of the SIF runs before its sha256 is right.
  check_gpus &
  gpu_check=$!
  find_environment
  check_environment
}

# Names each path of the job that this node lacks.
check_paths() {
  local lacks=''
  [ -n "${image_id-}" ] || [ -r "$environment" ] || lacks+=", the SIF ${environment:-(its path has a variable that is not set)}"
  if [ ! -d "$folder" ]; then
    lacks+=", the folder ${folder:-(its path has a variable that is not set)}"
  else
    [ -z "$script" ] || [ -r "$script" ] || lacks+=", the program $script"
    { (umask 022 && mkdir -p "${logs%/*}") && [ -w "${logs%/*}" ]; } 2>/dev/null || lacks+=", a folder ${logs%/*} that you can write, for logs"
  fi
  [ -z "$lacks" ] || fail "this node lacks${lacks#,}; put it there, on a file system that all nodes share, or write this script with the folders of these machines: \`--for SITE\`"
}

check_gpus() {
  local driver seen
  [ "$gpus" -gt 0 ] || return 0
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader) || fail "the NVIDIA driver does not answer: ${driver:-nvidia-smi is not there}"
  seen=$(wc -l <<<"$driver")
  [ "$seen" -ge "$gpus" ] || fail "$gpus GPUs are wanted, and $seen are here"
  printf '%s\n%s\n' "$driver_floor" "${driver%%$'\n'*}" | sort --check=silent --version-sort ||
    fail "driver ${driver%%$'\n'*} is too old: this CUDA needs $driver_floor"
}

# Prints why program $1 cannot be started here. The container's shell runs it, which may be any.
why_not_started() {
  local path interpreter
  case $1 in
    *.py) [ -f "$1" ] || echo "it has no file $1" ;;
    *)
      path=$(command -v "$1") || echo "it has no program $1"
      interpreter=$(sed -n '1s/^#! *\([^ ]*\).*/\1/p;1q' "$path" 2>/dev/null)
      [ -z "$interpreter" ] || [ -e "$interpreter" ] || echo "it has no $interpreter, which the first line of $1 names"
      ;;
  esac
}

# Checks in a container that the program can be started, then torch, extensions and libraries of the driver.
check_environment() {
  local said why code=0 needed=${program[0]}
  case $needed in
    --no_python) needed=${program[1]} ;;
    -m) needed=python ;;
  esac
  said=$( (inside sh -c "$(declare -f why_not_started)"'
    why=$(why_not_started "$0")
    [ -z "$why" ] || { echo "$why" && exit 121; }
    exec "$@"' "$needed" python -m envbuilder_smoke --check --gpus "$gpus") 2>&1) || code=$?
  [ -z "$said" ] || [ "$code" -eq 121 ] || printf '%s\n' "$said" >&2
  case $code in
    121) fail "the container, with the environment, the project and the site's \`binds\`, cannot start the program: ${said##*$'\n'}" ;;
    137 | 143) exit "$code" ;; # another node's failure has ended it
  esac
  wait "$gpu_check" || exit # without a driver, the environment fails as well
  [ "$code" -ne 0 ] || return 0
  if why=$(why_refused "$code" "$said"); then fail "no container starts here: $why"; fi
  fail "the environment in $environment is damaged or does not fit this node"
}

# Makes the folder of this job's logs. A requeued job has one.
make_logs() {
  mkdir -p "${logs%/*}"
  own_folder "$logs" 755 || fail "the folder of logs $logs belongs to another user or is a link"
}

# Prints each line as it comes, and copies those that begin with a rank into that rank's file. An older torchrun's
# `[defaultLOCAL]:` follows the number of its node; `[rank3]:` is torch's own, before each line of a traceback. The C++ stacks
# of the launcher itself, which torchrun also prints when a job ends well, go into `stacks.log` instead, its other lines also into
# `launcher.log`: they have the signal that ended a rank.
split_by_rank() {
  trap '' TERM INT HUP # it ends with its input
  local -a awk=(awk)
  mkdir -p "$logs"
  if ! command -v awk >/dev/null; then
    say "awk is not installed, so the ranks have no logs of their own; this log has all lines"
    exec cat
  fi
  # Debian's awk waits for a full block of input unless it is told that somebody waits for its output.
  if [[ $(awk -W version 2>&1 </dev/null || :) == mawk* ]]; then awk+=(-W interactive); fi
  "${awk[@]}" -v logs="$logs" '
    /^(Exception raised from .*most recent call first|frame #[0-9]+: )/ { print >(logs "/stacks.log"); next }
    { printf "%s", $0 "\n"; fflush() }
    match($0, /^ *[0-9]+: (\[default[0-9]+\]:)?/) {
      rank = substr($0, 1, RLENGTH)
      gsub(/[^0-9]+/, "-", rank)
      gsub(/^-|-$/, "", rank)
      file = logs "/rank-" rank ".log"
      print substr($0, RLENGTH + 1) >file
      fflush(file)
      next
    }
    { print >(logs "/launcher.log"); fflush(logs "/launcher.log") }'
}

# Replaces this process by a program in the environment: in this node's copy, if it has one.
inside() {
  local -a options=()
  local bind sif=$environment
  [ ! -f "$scratch/sifs/$copy" ] || sif=$scratch/sifs/$copy
  [ "$gpus" -eq 0 ] || options+=(--nv)
  for bind in "$project" "$scratch" "${binds[@]}"; do
    [ ! -e "${bind%%:*}" ] || options+=(--bind "$bind")
  done
  exec "$apptainer" exec "${options[@]}" "$sif" "$@"
}

# Prints why Apptainer started no container, from its exit code and output, and the repair, as `envbuilder doctor --for run`
# does. Fails when a container was started.
why_refused() {
  local reason=${2##*FATAL:} repair='`envbuilder doctor --for run` names what this node lacks'
  reason=${reason%%$'\n'*}
  if [ "$1" -ne 255 ] || [[ $reason == *'executable file not found'* ]]; then return 1; fi
  case $reason in
    *'/dev/fuse: Permission denied'*) repair='as root, `chmod 666 /dev/fuse`' ;;
    *'/dev/fuse: Operation not permitted'*) repair='start the container around this shell with `--device /dev/fuse`' ;;
    *'modprobe fuse'*) repair='as root, `modprobe fuse`' ;;
    *namespace*) repair='ask the administrators for user namespaces or apptainer-suid' ;;
  esac
  printf '%s; repair: %s' "${reason#"${reason%%[! ]*}"}" "$repair"
}

# Size, place and times of a file. Users cannot set the change time (%Z).
state() { stat -Lc '%s %d:%i %.9Y %.9Z' "$1"; }

# Prints the sha256 of file $1. Where sha256sum does without OpenSSL, it takes four times as long.
sha256() {
  local digest
  digest=$(openssl dgst -sha256 -r <"$1" 2>/dev/null) || :
  [[ $digest =~ ^[0-9a-f]{64}' ' ]] || digest=$(sha256sum <"$1")
  printf '%s\n' "${digest%% *}"
}

# Whether file $1 is the SIF that this script was written for. Reading it takes seconds, or minutes on a busy file system.
# So file $2 keeps the result, and the SIF is read again only if its state differs.
is_right() {
  found=$(state "$1") digest=''
  [ "${found%% *}" = "$sif_bytes" ] || return 1
  if [ "$found" = "$sif_state" ] || [ "$(cat "$2" 2>/dev/null)" = "$found" ]; then return; fi
  digest=$(sha256 "$1")
  [ "$digest" = "$sif_sha256" ] || return 1
  printf '%s\n' "$found" 2>/dev/null >"$2" || :
}

find_environment() {
  local found digest
  found=$(uname -m)
  [ "${machine:-$found}" = "$found" ] || [ -e "/proc/sys/fs/binfmt_misc/qemu-$machine" ] ||
    fail "$environment is for $machine, and this node's processor is $found"
  command -v "$apptainer" >/dev/null || fail "$apptainer is not installed"
  if [ -n "$copy" ]; then
    if put_copy; then return; fi
    say "this node has no copy, so it reads $environment"
  fi
  is_right "$environment" "$scratch/sif-$sif_sha256" ||
    fail "this script was written for another file: $environment has ${found%% *} bytes${digest:+, sha256 $digest}"
}

# Turns on torch's recorder of collectives. Each of `recorder` is the name that this torch reads and the one of other releases; a
# value of the user's in either stays. A dump goes to the logs after a timeout, and at any time when somebody writes to the pipe:
# the node's own disk has pipes, whatever the file system of the logs is.
record() {
  local number name other values=(2000 1 "$logs/recorder_" "$scratch/recorder-$job-")
  for number in "${!recorder[@]}"; do
    read -r name other <<<"${recorder[number]}"
    [ -n "${!other-}" ] || default "$name" "${values[number]}"
  done
  find "$scratch" -maxdepth 1 -type p -name 'recorder-*' -mtime +30 -delete 2>/dev/null || : # torch leaves them
}

# Looks at the ranks whenever none has written for some minutes, and says who waits for whom. `say_end` ends it.
watch_ranks() {
  (umask 022 && ways >"$logs/nodes")
  [ ${#watcher[@]} -gt 0 ] || return 0
  if [ -x "${watcher[0]}" ]; then
    "${watcher[@]}" "$logs" </dev/null 9>&- 8>&- &
    watching=$!
  else
    say "the job is not watched: this machine has no ${watcher[0]}"
  fi
}

# One container per node, in which torchrun starts the node's ranks.
ranks() {
  prepare
  record
  [ "$ranks_per_node" -eq 1 ] || default OMP_NUM_THREADS 1 # as torchrun does, which prints five lines about it
  export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='${rank}: ' TORCH_ELASTIC_SHUTDOWN_TIMEOUT="$grace"
  inside torchrun --nnodes="$nodes" --nproc_per_node="$ranks_per_node" --local_addr="$(this_node)" \
    --rdzv_id="$job" --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT" \
    --tee=3 --log_dir="$logs/torchrun" "${program[@]}"
}

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
