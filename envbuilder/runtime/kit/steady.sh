#!/bin/sh
# Runs a compile so that nvcc writes the same object each time, for the recipe's GPUs:
#
#   steady.sh COMMAND [ARGUMENT…]
#
# `steady.c`, which lies beside this file, says how.
#
# Where programs of another processor are emulated and nvcc is not, _ENVBUILDER_NATIVE_GCC is the compiler for the latter.
#
# Without CUDA, it only runs the command. /space is the build directory.
set -eu
[ -e /usr/local/cuda/bin/cudafe++ ] || exec "$@"
build() {
  "$1" -shared -fPIC -O2 -o "$2/steady.so" "$(dirname "$0")/steady.c"
}
if [ -z "${_ENVBUILDER_NATIVE_GCC:-}" ]; then
  build gcc /space
  library=/space/steady.so
else
  for gcc in gcc "$_ENVBUILDER_NATIVE_GCC"; do
    folder=/space/lib/$("$gcc" -print-multiarch)
    mkdir -p "$folder"
    build "$gcc" "$folder"
  done
  library="/space/\$LIB/steady.so" # the loader of each processor puts its own folder for $LIB (ld.so(8))
fi
LD_PRELOAD=$library exec "$@"
