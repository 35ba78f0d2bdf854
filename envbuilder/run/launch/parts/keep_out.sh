# Drops variables of the machine's conda, modules and tools that would bring another Python, other libraries or start files
# into the environment. Of PYTHONPATH, the project's own folders stay. APPTAINERENV_NAME passes one on purpose. The SIF leaves
# out the same and more, without a word: each rank starts it.
keep_out() {
  local name entry kept='' entries=() IFS='|'
  local pattern="@(${left_out[*]})"
  unset IFS
  for name in $(compgen -e); do
    # shellcheck disable=SC2053 # a pattern
    if [[ $name == $pattern ]]; then unset "$name"; fi
  done
  export ENVBUILDER_SHELL=${ENVBUILDER_SHELL:-quiet}
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
  if [ -n "$kept" ]; then export PYTHONPATH=${kept#:}; else unset PYTHONPATH; fi
}
