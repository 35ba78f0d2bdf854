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
