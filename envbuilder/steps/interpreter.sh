#!/bin/sh
# Unpack a standalone Python to /opt/python, and start `interpreter.py` by it: `interpreter.sh SPEC INPUTS OUT`.
#
# INPUTS has `python.tar.gz`, an archive of python-build-standalone. A root may have no other Python.
set -eu
umask 022
archive=$2/python.tar.gz out=$3
echo 0/2 unpacking
mkdir "$out/opt"
[ -d /opt ] || mkdir /opt
# Archives of sources and programs unpack to 14 times their size at most.
ulimit -f 4194304 # blocks of 512 bytes: no file of it is larger
most=$(($(wc -c <"$archive") * 100 + 268435456))
gzip -dc "$archive" | head -c "$most" | tar --extract --touch --no-same-owner --no-same-permissions --directory "$out/opt" ||
  { echo "$archive is no archive of a standalone Python" >&2 && exit 1; }
[ "$(ls -A "$out/opt")" = python ] || { echo "$archive holds other files than those below python/" >&2 && exit 1; }
echo 1/2 compiling byte code
ln -s "$out/opt/python" /opt/python # its place in the image, which byte code names
/opt/python/bin/python3 -B "${0%/*}/interpreter.py"
rm /opt/python
