# Replaces this process by a program in a container of the image. It gets the exported variables, except those that the
# image sets: as with Apptainer, the image's PATH wins. ENVBUILDER_JOB is among them, so the container's processes are found.
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

# Prints why Docker started no container, from its exit code and output. Fails when a container was started.
why_refused() { [ "$1" -eq 125 ] && printf '%s' "${2##*docker: }"; }

find_environment() {
  local found
  command -v docker >/dev/null || fail "docker is not installed"
  found=$(docker image inspect --format '{{.Id}}' "$environment") || fail "the Docker engine is not running, or has no image $environment"
  [ "$found" = "$image_id" ] || fail "this script was written for another image: $environment is $found"
}
