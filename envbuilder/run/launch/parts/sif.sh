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
