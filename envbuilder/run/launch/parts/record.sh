# Turns on torch's recorder of collectives. Each of `recorder` is the name that this torch reads and the one of other releases; a
# value of the user's in either stays. A dump goes to the logs after a timeout, and at any time when somebody writes to the pipe:
# the node's own disk has pipes, whatever the file system of the logs is.
record() {
  local number name other values=(2000 1 "$logs/recorder_" "$scratch/recorder-$job-")
  for number in "${!recorder[@]}"; do
    read -r name other <<<"${recorder[number]}"
    [ -n "${!other-}" ] || default "$name" "${values[number]}"
  done
  find "$scratch" -maxdepth 1 -type p -name 'recorder-*' -mtime +30 -delete 2>/dev/null || : # torch leaves them
}
