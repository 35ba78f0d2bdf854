[ "$#" -eq 1 ] || { printf 'usage: %s CONNECTION_FILE\n' "$0" >&2; exit 2; }
here=$(cd "${0%/*}" && pwd)

# The kernel gets the connection file as one line, and ends when this script has ended: Jupyter may be killed, or far away.
feed() {
  exec 2>/dev/null
  tr -d '\n' <"$1"
  echo
  while kill -0 $$ 2>/dev/null; do sleep 2; done
}

case $form in
  sif) command=("$here/$name-exec" python -c "$boot") ;;
  image)
    command=(docker run --rm --interactive --init --network=host --ipc=host "--user=$(id -u):$(id -g)" --env=HOME=/tmp)
    [ ! -e /dev/nvidiactl ] || command+=(--gpus=all)
    command+=("--env=PYTHONNOUSERSITE=1" "--volume=$PWD:$PWD" "--workdir=$PWD" "$image" python -c "$boot")
    ;;
  ssh)
    command=(ssh -F "$config" -o BatchMode=yes -o ControlPath=none -o ExitOnForwardFailure=yes -o ServerAliveInterval=15)
    while read -r port; do
      command+=(-L "127.0.0.1:$port:127.0.0.1:$port")
    done < <(grep -Eo '_port": *[0-9]+' "$1" | grep -Eo '[0-9]+')
    command+=("$host" "exec python -c ${boot@Q}")
    ;;
esac
"${command[@]}" < <(feed "$1")
