#!/bin/sh
# Compiles one extension in /space and installs it. Runs inside the environment:
#
#   compile_one.sh FOLDER SOURCES OUT
#
# FOLDER holds `spec.json` and `entry.json`, the arguments of `compile_extension.py` and `install_extension.py` beside this file;
# `sources`, the sha256 and path of each file below SOURCES; and `environment`, variables as a shell script. With a file `project`,
# the project's own build runs: `project` holds its folder in /space, `src` its files, and `spec.json` is the argument of
# `build_project.py`, which runs /uv. OUT is the root of new files.
set -eu
umask 022
folder=$1 sources=$2 out=$3 kit=$(dirname "$0")
export PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC
# shellcheck source=/dev/null
. "$folder/environment"
mkdir -p /space/src /space/build
program=compile_extension.py place=/space/src
if [ -e "$folder/project" ]; then
  program=build_project.py place=$(cat "$folder/project")
  cp -R "$folder/src/." /space/src
else
  cd "$sources"
  sha256sum --check --quiet "$folder/sources"
  cut -c 67- "$folder/sources" | tr '\n' '\0' | xargs -0 -r cp --parents -t /space/src --
fi
cd "$place"
sh "$kit/steady.sh" /opt/env/bin/python "$kit/$program" "$folder/spec.json"
/opt/env/bin/python "$kit/install_extension.py" "$folder/entry.json" "$out"
cd /
rm -rf /space /tmp/extensions
