#!/bin/sh
# Makes the Python environment at /opt/env and installs wheels into it. Runs inside the root of the image:
#
#   install_wheels.sh FOLDER [BUILT]
#
# FOLDER holds `wheels`, `requirements.txt` with their hashes, `uv`, and `settings`: INTERPRETER, the distribution's Python;
# VERSION, its minor version; REPEAT, not empty if one process must compile all byte code, so that it is reproducible;
# SDISTS, the folders below BUILT with wheels that were built from source distributions.
set -eu
umask 022
folder=$1 built=${2-}
# shellcheck source=/dev/null
. "$folder/settings"

prefix=/opt/env site=/opt/env/lib/python$VERSION/site-packages
mkdir -p $prefix/bin "$site"
cd $prefix
ln -s lib lib64
ln -s "$INTERPRETER" bin/python
ln -s python bin/python3
ln -s python "bin/python$VERSION"
printf 'home = %s\ninclude-system-site-packages = false\nversion = %s\n' "${INTERPRETER%/*}" "$VERSION" >pyvenv.cfg

# The byte code is not checked against its source, because an image is read-only.
export PYC_INVALIDATION_MODE=UNCHECKED_HASH PYTHONHASHSEED=0 PYTHONWARNINGS=ignore HOME=/root LC_ALL=C.UTF-8
export UV_NO_INSTALLER_METADATA=1 UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never UV_CACHE_DIR=/opt/.uv
compile='' requirements=/tmp/requirements.txt
[ -n "$REPEAT" ] || compile=--compile-bytecode
cp "$folder/requirements.txt" $requirements
set -- --find-links "$folder/wheels"
for name in ${SDISTS-}; do
  set -- "$@" --find-links "$built/$name"
  for wheel in "$built/$name"/*.whl; do
    file=${wheel##*/} hash=$(sha256sum "$wheel")
    rest=${file#*-}
    echo "${file%%-*}==${rest%%-*} --hash=sha256:${hash%% *}" >>$requirements
  done
done
"$folder/uv" pip install --no-config --offline --no-index "$@" --no-deps --require-hashes \
  --requirement $requirements --python $prefix/bin/python --link-mode hardlink $compile
rm -rf /opt/.uv $requirements
[ -z "$REPEAT" ] || "$INTERPRETER" "${0%/*}/compile_all.py" "$site"
"$INTERPRETER" "${0%/*}/check_byte_code.py" "$site"
chmod 644 $prefix/.lock
