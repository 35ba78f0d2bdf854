say() { printf 'launch: %s: %s\n' "$(uname -n)" "$*" >&2; }

fail() {
  say "$*"
  exit 1
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
