#!/bin/sh
# Installs the Debian packages of a root, which are only unpacked so far. Runs inside that root:
#
#   configure_os.sh DEBS GCC [PYTHON]
#
# DEBS holds exactly the packages. GCC is the version that gets the compilers' plain names. PYTHON is a version whose library is
# byte-compiled again, because its packages do that in another order each time. The variables EXCLUDE, KEEP, DROP and NAMES
# are lists, separated by spaces: paths that dpkg leaves out, exceptions that it keeps, paths that are removed in the end,
# and name=tool for each compiler.
set -eu
debs=$1 gcc=$2 python=${3-}
if [ -s /var/lib/dpkg/status ]; then
  echo "configure_os.sh: this root has installed packages; run it only in a new root, because it removes files" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LC_ALL=C.UTF-8 PYTHONHASHSEED=0
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
set -f # the patterns in the lists are for dpkg, not for this shell

mkdir -p /etc/dpkg/dpkg.cfg.d /var/lib/dpkg/info /var/lib/dpkg/triggers /var/lib/dpkg/updates \
  /var/lib/dpkg/alternatives /var/lib/dpkg/parts /usr/local/bin /opt/envbuilder /.singularity.d
settings=/etc/dpkg/dpkg.cfg.d/99envbuilder
echo force-unsafe-io >"$settings" # no fsync: the root is packed next
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
# dash before 0.5.11, of Ubuntu 20.04, fails unless this folder exists.
manuals=
if find "$debs" -name 'dash_*.deb' -exec dpkg-deb --field {} Version \; | grep -q '^0\.5\.10'; then
  manuals=/usr/share/man/man1
  mkdir -p "$manuals"
fi

# All at once, so that dpkg orders the packages and every file that a script needs is there.
if ! { find "$debs" -name '*.deb' -exec dpkg --unpack --force-depends {} + && dpkg --configure --pending; } >/tmp/dpkg.log 2>&1; then
  tail -n 30 /tmp/dpkg.log >&2
  exit 1
fi

[ -z "$python" ] || "python$python" -m compileall -q -f "/usr/lib/python$python"
for pair in $NAMES; do ln -sf "../../bin/${pair#*=}-$gcc" "/usr/local/bin/${pair%%=*}"; done
rm -f "$settings" /usr/sbin/policy-rc.d /tmp/dpkg.log /var/lib/dpkg/available
[ -z "$manuals" ] || rm -rf "$manuals"
# In the order in which dpkg unpacked the packages, which is that of a folder.
triggers=/var/lib/dpkg/triggers/File
[ ! -s "$triggers" ] || LC_ALL=C sort -o "$triggers" "$triggers"
# Remove the files of a running system, except the target of /var/lock (Debian Policy 9.1.4).
find /run -mindepth 1 -maxdepth 1 ! -name lock -exec rm -rf --one-file-system {} +
for path in $DROP; do rm -rf "/${path:?}"; done
