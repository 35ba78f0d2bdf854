case ${0##*/} in
  "$name-exec")
    case ${1-} in
      --) shift ;;
      -*)
        printf '%s: there is no option %s\nhint: a program and its options: %s python -V\n' "$name-exec" "$1" "$name-exec" >&2
        exit 2
        ;;
    esac
    [ "$#" -gt 0 ] || set -- /bin/bash
    ;;
  *) set -- "${0##*/}" "$@" ;;
esac

# Prints the checkout that holds this folder, so that ../data works inside, or the folder itself.
project() {
  local folder=$PWD
  until [ -e "$folder/.git" ]; do
    if [ -z "$folder" ]; then
      printf %s "$PWD"
      return
    fi
    folder=${folder%/*}
  done
  printf %s "$folder"
}

# Succeeds if a mount there hides nothing of the image.
hides_nothing() {
  local tree
  for tree in "${image_folders[@]}"; do
    if [ "$1" = "$tree" ]; then return 1; fi
  done
  for tree in "${image_trees[@]}"; do
    if [[ $1/ == "$tree"/* ]]; then return 1; fi
  done
  [[ $1 == /* ]]
}

# By default, Apptainer mounts these itself.
is_shared() {
  local tree
  for tree in "${shared_trees[@]}"; do
    if [[ $1 != *:* && $1/ == "$tree"/* ]]; then return 0; fi
  done
  return 1
}

if [ ! -r "$sif" ]; then
  printf '%s: cannot read %s: was it moved, or is its file system not on this machine?\n' "${0##*/}" "$sif" >&2
  exit 1
fi
project=$(project)
keep_out "$project"
export ENVBUILDER_SHELL=${ENVBUILDER_SHELL:-quiet} # many short commands
# Packages of ~/.local would shadow the environment's, and the SIF may lack your own shell.
options=(--env PYTHONNOUSERSITE=1 --env SHELL=/bin/bash)
[ ! -e /dev/nvidiactl ] || options+=(--nv)
for folder in "$project" "${TMPDIR-}"; do
  if [ -d "$folder" ] && hides_nothing "$folder" && ! is_shared "$folder"; then options+=(--bind "$folder"); fi
done
for bind in "${binds[@]}"; do
  if [ -e "${bind%%:*}" ] && ! is_shared "$bind"; then options+=(--bind "$bind"); fi
done
# After the other mounts, which may hold your home. In a SIF, HOME is the account's, whatever it is here.
files=(/etc/profile "${start_files[@]/#/${HOME-}/}")
account=$(getent passwd "$UID" | cut -d: -f6) || :
[ "$account" = "${HOME-}" ] || files+=("${start_files[@]/#/$account/}")
for file in "${files[@]}"; do
  [ ! -f "$file" ] || options+=(--bind "${0%/*}/start_file.sh:$file:ro")
done
# With env, a program that is not there ends with 127 and not with 255.
exec "$apptainer" exec "${options[@]}" "$sif" env "$@"
