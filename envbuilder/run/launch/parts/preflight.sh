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
