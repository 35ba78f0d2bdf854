#!/bin/sh
# Builds the wheel of one source distribution in /space. Runs inside the root of the image:
#
#   build_wheel.sh FOLDER PYTHON OUT
#
# FOLDER holds the source distribution, `tools`, the packages that its build needs, `spec.json`, the argument of `build_project.py`
# beside this file, which runs /uv, and `environment`, variables as a shell script. The wheel is written into OUT.
set -eu
umask 022
folder=$1 python=$2 out=$3 kit=$(dirname "$0")
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC
# shellcheck source=/dev/null
. "$folder/environment"
mkdir -p /space "$out"
cp -RL "$folder/." /space
cd /space
"$python" "$kit/build_project.py" spec.json
cp wheel/*.whl "$out"
cd /
rm -rf /space
