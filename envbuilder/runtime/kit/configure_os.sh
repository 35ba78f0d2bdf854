#!/bin/sh
# Makes a root into which Debian packages were only unpacked one that dpkg has installed. Runs inside that root:
#
#   configure_os.sh DEBS GCC [PYTHON]
#
# DEBS holds exactly the packages; GCC is the version that gets the compilers' plain names; PYTHON, where it is given, is
# a version whose library is byte-compiled anew, because its packages do that in another order each time. EXCLUDE, KEEP,
# DROP and NAMES are lists with a blank between: paths that dpkg leaves out, those of them that it keeps, what goes
# in the end, and name=tool of the compilers.
set -eu
debs=$1 gcc=$2 python=${3-}
if [ -s /var/lib/dpkg/status ]; then
  echo "configure_os.sh: packages are installed here already; this is for a root of its own, and removes files from it" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LC_ALL=C.UTF-8 PYTHONHASHSEED=0
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
set -f # the lists hold patterns for dpkg, not for this shell

mkdir -p /etc/dpkg/dpkg.cfg.d /var/lib/dpkg/info /var/lib/dpkg/triggers /var/lib/dpkg/updates \
  /var/lib/dpkg/alternatives /var/lib/dpkg/parts /usr/local/bin /opt/envbuilder /.singularity.d \
  /etc/apt/preferences.d /etc/apt/sources.list.d
settings=/etc/dpkg/dpkg.cfg.d/99envbuilder
echo force-unsafe-io >"$settings" # a root that is packed next needs no disk to be waited for
for path in $EXCLUDE; do
  echo "path-exclude=$path" >>"$settings"
  rm -rf "${path%/\*}"
done
for path in $KEEP; do echo "path-include=$path" >>"$settings"; done
: >/var/lib/dpkg/status
dpkg --print-architecture >/var/lib/dpkg/arch
echo '# UNCONFIGURED FSTAB FOR BASE SYSTEM' >/etc/fstab
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d # packages must not start their services (invoke-rc.d(8))
chmod 755 /usr/sbin/policy-rc.d

# All at once: dpkg knows no order among packages that it has not read yet, and every file that a script may want is there.
if ! { find "$debs" -name '*.deb' -exec dpkg --unpack --force-depends {} + && dpkg --configure --pending; } >/tmp/dpkg.log 2>&1; then
  tail -n 30 /tmp/dpkg.log >&2
  exit 1
fi

[ -z "$python" ] || "python$python" -m compileall -q -f "/usr/lib/python$python"
for pair in $NAMES; do ln -sf "../../bin/${pair#*=}-$gcc" "/usr/local/bin/${pair%%=*}"; done
rm -f "$settings" /usr/sbin/policy-rc.d /tmp/dpkg.log /var/lib/dpkg/available
# What only a running system has, but for what /var/lock leads to (Debian Policy 9.1.4).
find /run -mindepth 1 -maxdepth 1 ! -name lock -exec rm -rf --one-file-system {} +
for path in $DROP; do rm -rf "/${path:?}"; done
