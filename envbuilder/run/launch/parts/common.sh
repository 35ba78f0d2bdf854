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
