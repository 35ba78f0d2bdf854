# Drops variables of the machine's conda, modules and tools that would bring another Python, other libraries or start files
# into the environment. Of PYTHONPATH, the project's own folders stay. APPTAINERENV_NAME passes one on purpose. The SIF leaves
# out the same and more. Adds the names to `lost`, except those that many machines set for every user.
keep_out() {
  local name entry kept='' entries=() IFS='|'
  local pattern="@(${left_out[*]})" silent="@(${untold[*]})"
  unset IFS
  if [ "${ENVBUILDER_SHELL-}" = off ]; then return; fi
  for name in $(compgen -e); do
    # shellcheck disable=SC2053 # patterns
    if [[ $name == $pattern ]]; then
      unset "$name"
      # shellcheck disable=SC2053
      [[ $name == $silent ]] || lost+=" $name"
    fi
  done
  if [ -z "${PYTHONPATH-}" ]; then return; fi
  IFS=: read -ra entries <<<"$PYTHONPATH"
  for entry in "${entries[@]}"; do
    case $entry/ in
      / | */site-packages/* | */dist-packages/*) ;;
      "$1"/*) [ "$1" = "${HOME-}" ] || kept+=:$entry ;;
      /*) ;;
      *) kept+=:$entry ;;
    esac
  done
  [ "${kept#:}" = "$PYTHONPATH" ] || lost+=' PYTHONPATH'
  if [ -n "$kept" ]; then export PYTHONPATH=${kept#:}; else unset PYTHONPATH; fi
}
