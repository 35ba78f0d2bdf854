#!/bin/sh
# Adds Debian packages to a base image. Runs inside the root of the image:
#
#   add_packages.sh FOLDER
#
# FOLDER holds `debs`, which may be empty, and `settings`: GCC, REPEAT, and EXCLUDE, KEEP, DROP and NAMES as for `configure_os.sh`;
# DRIVER is the gcc that gets the compilers' plain names.
set -eu
if [ $$ -ne 1 ]; then
  echo "add_packages.sh: run it as the first process of a container, because it changes the root" >&2
  exit 1
fi
folder=$1
# dpkg runs without the variables of the image, such as LD_LIBRARY_PATH.
[ -n "${ALONE-}" ] ||
  exec env -i ALONE=1 "SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH-}" PATH=/usr/sbin:/usr/bin:/sbin:/bin /bin/sh "$0" "$folder"
umask 022
# shellcheck source=/dev/null
. "$folder/settings"
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LC_ALL=C.UTF-8 PYTHONHASHSEED=0
set -f # the patterns in the lists are for dpkg, not for this shell

set -- --force-unsafe-io # no fsync: the root is packed next
for path in $EXCLUDE; do set -- "$@" "--path-exclude=$path"; done
for path in $KEEP; do set -- "$@" "--path-include=$path"; done
added=$(find "$folder/debs" -name '*.deb' | sort)
if [ -n "$added" ]; then
  policy=/usr/sbin/policy-rc.d own=
  if [ ! -e $policy ]; then # packages must not start their services (invoke-rc.d(8))
    own=1
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
  fi
  # shellcheck disable=SC2086 # names of packages have no spaces
  if ! { dpkg "$@" --unpack --force-depends --force-downgrade $added && dpkg "$@" --configure --pending; } >/tmp/dpkg.log 2>&1; then
    tail -n 30 /tmp/dpkg.log >&2
    exit 1
  fi
  [ -z "$own" ] || rm $policy
  rm /tmp/dpkg.log
fi

mkdir -p /usr/local/bin /opt/envbuilder /.singularity.d
[ -z "$REPEAT" ] || "python$REPEAT" -m compileall -q -f "/usr/lib/python$REPEAT"
for pair in $NAMES; do
  tool=${DRIVER%/*}/${pair#*=}-$GCC
  [ -e "$tool" ] || tool=${DRIVER%/*}/${pair#*=} # the gcc of an image may have no number in its name
  [ ! -e "$tool" ] || [ "$tool" = "/usr/local/bin/${pair%%=*}" ] || ln -sf "$tool" "/usr/local/bin/${pair%%=*}"
done
for path in $DROP; do rm -rf "/${path:?}"; done
# Make nothing writable for everybody, and remove pipes, sockets and devices: a layer must not hold them.
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /os -o -path /kit \) -prune -o \
  \( -type f -o -type d ! -perm -1000 \) -perm -0002 -exec chmod o-w {} +
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /os -o -path /kit \) -prune -o \
  \( -type p -o -type s -o -type b -o -type c \) -exec rm -f {} +
