# Replaces this process by a program in the environment.
inside() {
  local -a options=()
  local bind
  [ "$gpus" -eq 0 ] || options+=(--nv)
  for bind in "$project" "$scratch" "${binds[@]}"; do
    [ ! -e "${bind%%:*}" ] || options+=(--bind "$bind")
  done
  exec "$apptainer" exec "${options[@]}" "$environment" "$@"
}

# Fails unless the SIF is the file that this script was written for. Reading it takes seconds, or minutes on a busy file
# system. So the node keeps the result in its scratch, and reads again only if size, times or inode differ. Users cannot set
# the change time (%Z).
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
  fail "this script was written for another file: $environment has ${found%% *} bytes${digest:+, sha256 $digest}"
}

find_environment() {
  command -v "$apptainer" >/dev/null || fail "$apptainer is not installed"
  [ -r "$environment" ] || fail "cannot read $environment: is it on a file system that this node has?"
  check_sif
}
