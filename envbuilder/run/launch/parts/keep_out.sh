# Drops variables of the machine's conda, modules and tools that would bring another Python, other libraries or start files
# into the environment. Of PYTHONPATH, the project's own folders stay. APPTAINERENV_NAME passes one on purpose.
keep_out() {
  local entry kept='' entries=()
  unset PYTHONHOME LD_PRELOAD LD_AUDIT BASH_ENV ENV VIRTUAL_ENV CC CXX CUDAHOSTCXX "${!CONDA_@}"
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
