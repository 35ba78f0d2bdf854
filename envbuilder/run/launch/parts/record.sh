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

# Looks at the ranks whenever none has written for some minutes, and says who waits for whom. `say_end` ends it.
watch_ranks() {
  (umask 022 && ways >"$logs/nodes")
  [ ${#watcher[@]} -gt 0 ] || return 0
  if [ -x "${watcher[0]}" ]; then
    "${watcher[@]}" "$logs" </dev/null 9>&- 8>&- &
    watching=$!
  else
    say "the job is not watched: this machine has no ${watcher[0]}"
  fi
}
