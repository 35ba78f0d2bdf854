# Puts a copy of the SIF on this node, with its digest in its name. It gets that name once its bytes are checked, so a copy is
# whole or absent, and that of a running job is never replaced. A second job waits, and finds it.
put_copy() {
  local here=$scratch/sifs/$copy
  own_folder "$scratch/sifs" 700 || return 1
  (
    flock 7 || exit 1
    if [ ! -f "$here" ] || ! is_right "$here" "$here.checked"; then
      rm -f "$here" "$scratch/sifs"/*.part
      remove_old_copies
      {
        [ "$(stat -Lc %s "$environment")" = "$sif_bytes" ] && cp "$environment" "$here.part" && chmod 755 "$here.part" &&
          [ "$(sha256 "$here.part")" = "$sif_sha256" ] && mv "$here.part" "$here" && state "$here" >"$here.checked"
      } || {
        rm -f "$here.part"
        exit 1
      }
    fi
    touch "$here.checked"
  ) 7>"$scratch/sifs/lock"
}

# Removes the copies that no job started from: of this name for an hour, of others for 30 days. Each start touches `.checked`.
remove_old_copies() {
  local old minutes
  for old in "$scratch/sifs"/*.sif; do
    minutes=60
    [ "${old%-*}" = "$scratch/sifs/${copy%-*}" ] || minutes=43200
    [ -n "$(find "$old" "$old.checked" -mmin "-$minutes" 2>/dev/null)" ] || rm -f "$old" "$old.checked"
  done
}
