#!/bin/sh
# Byte-compiles the modules that each Python of the environment runs first: the files below LAYER, as if they were below /.
#
#   write_start.sh INTERPRETER LAYER
set -eu
export PYTHONHASHSEED=0 PYTHONWARNINGS=ignore LC_ALL=C.UTF-8
"$1" -m compileall -q --invalidation-mode unchecked-hash -d /opt "$2/opt"
