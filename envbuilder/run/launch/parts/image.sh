# Becomes the program given, in a container of the image. What is exported here is there, too, but for what the image sets
# itself: as with Apptainer, its PATH wins. So does the mark of this job, by which what runs in the container is found.
inside() {
  local -a options=(--rm --init --ipc=host --network=host --user="$UID:$(id -g)" --workdir="$folder")
  local bind name own
  [ "$gpus" -eq 0 ] || options+=(--gpus=all)
  for bind in "$project" "$scratch" "${binds[@]}"; do
    if [ ! -e "${bind%%:*}" ]; then continue; fi
    case $bind in
      *:*) options+=(--volume="$bind") ;;
      *) options+=(--volume="$bind:$bind") ;;
    esac
  done
  own=$(docker image inspect --format '{{range .Config.Env}}{{println .}}{{end}}' "$environment")
  for name in $(compgen -e); do
    case $name in
      HOME | PWD | OLDPWD | SHLVL | _ | LD_* | APPTAINERENV_* | DOCKER_*) continue ;;
    esac
    if [[ $'\n'$own != *$'\n'"$name="* ]]; then options+=(--env="$name"); fi
  done
  exec docker run "${options[@]}" --env=HOME=/tmp --env=PYTHONNOUSERSITE=1 "$environment" "$@"
}

find_environment() {
  local found
  command -v docker >/dev/null || fail "there is no program docker here"
  found=$(docker image inspect --format '{{.Id}}' "$environment") || fail "the Docker engine does not answer, or has no image $environment"
  [ "$found" = "$image_id" ] || fail "$environment is not the image that this script was written for: it is $found"
}
