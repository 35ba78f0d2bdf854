#!/bin/sh
# Installs the packages that `distribution.py` unpacked, or adds packages to an image. Runs in that root, as its root user:
#
#   configure_distribution.sh SPEC INPUTS OUT
#
# INPUTS has `unpack`, which is what `distribution.py` wrote. OUT is `/`. Owners that scripts give are not part of the layer.
set -eu
unpacked=$2/unpack
# Without the variables of an image, such as LD_LIBRARY_PATH.
[ -n "${ALONE-}" ] || exec env -i ALONE=1 "SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH-}" \
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb PYTHONHASHSEED=0 \
  DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LANG=C.UTF-8 LANGUAGE=C.UTF-8 LC_ALL=C.UTF-8 \
  /bin/sh "$0" "$@"
unset ALONE
umask 022
# shellcheck source=/dev/null
. "$unpacked/settings"
set -f # the patterns in the lists are for dpkg, not for this shell

# Shows each package that dpkg has configured, up to the line `$token STATUS`, and returns this status. What a script has left running
# may hold the pipe open, so its end is not waited for.
show() {
  done=0
  while IFS= read -r line; do
    case $line in
      "$token "*) return "${line#"$token "}" ;;
      'Setting up '*)
        done=$((done + 1))
        line="$done/$COUNT configure ${line#Setting up }"
        ;;
    esac
    printf '%s\n' "$line"
  done
}

install_packages() {
  # shellcheck source=/dev/null
  . "$unpacked/preinst"
  set -- --force-unsafe-io # no fsync: the root is packed next
  for path in $EXCLUDE; do set -- "$@" "--path-exclude=$path"; done
  for path in $KEEP; do set -- "$@" "--path-include=$path"; done
  [ -z "$TOOLS" ] || set -- "$@" --force-downgrade
  left=$(find "$unpacked/left" -name '*.deb' | LC_ALL=C sort)
  # All at once, so that dpkg orders them. Their names have no spaces.
  # shellcheck disable=SC2086
  [ -z "$left" ] || dpkg "$@" --unpack --force-depends $left
  # After the first failure nothing follows, so its words are the last.
  dpkg --configure --force-unsafe-io --abort-after=1 --pending
}

# Does what the words of find(1) say with each file, without what is mounted.
files() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /step -o -path /steps \) -prune -o "$@"; }

# Prints owner and path of each file that is not root's.
list_owners() { files ! \( -uid 0 -gid 0 \) -printf '%U:%G %p\n'; }

[ -z "$TOOLS" ] || before=$(list_owners)
if [ "$COUNT" -gt 0 ]; then
  policy=/usr/sbin/policy-rc.d made=
  if [ ! -e $policy ]; then # packages must not start their services (invoke-rc.d(8))
    made=1
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
  fi
  token=$(cat /proc/sys/kernel/random/uuid)
  {
    set +e
    (set -e && install_packages) 2>&1
    echo "$token $?"
  } | show
  [ -z "$made" ] || rm $policy
fi
for python in $COMPILE; do "python$python" -m compileall -q -f "/usr/lib/python$python"; done

# What a machine makes of itself at random, secrets among it, and files that a package manager leaves behind, which differ each time.
drop="var/lib/dpkg/status-old var/cache/ldconfig/aux-cache var/lib/dbus/machine-id"
for kind in ecdsa ed25519 rsa; do drop="$drop etc/ssh/ssh_host_${kind}_key etc/ssh/ssh_host_${kind}_key.pub"; done
if [ -n "$TOOLS" ]; then
  drop="$drop var/log/dpkg.log var/log/alternatives.log var/log/apt var/log/bootstrap.log var/cache/debconf/config.dat-old
    var/cache/debconf/templates.dat-old"
  mkdir -p /usr/local/bin /opt/envbuilder /.singularity.d
  for pair in $NAMES; do
    tool=$TOOLS/${pair#*=}-$GCC
    [ -e "$tool" ] || tool=$TOOLS/${pair#*=} # the gcc of an image may have no number in its name
    [ ! -e "$tool" ] || [ "$tool" = "/usr/local/bin/${pair%%=*}" ] || ln -sf "$tool" "/usr/local/bin/${pair%%=*}"
  done
  # Make nothing writable for everybody, and remove pipes, sockets and devices: a layer must not hold them.
  files \( -type f -o -type d ! -perm -1000 \) -perm -0002 -exec chmod o-w {} +
  files \( -type p -o -type s -o -type b -o -type c \) -exec rm -f {} +
else
  drop="$drop var/cache/apt var/cache/debconf var/lib/apt var/log etc/apt/sources.list"
  [ -z "$MANUALS" ] || rm -r "/${MANUALS:?}"
  # Dev container tools give this user the id of theirs. Debian reserves the id, so it is no user's. With `*`, nobody can log in.
  echo 'vscode:*:65000:65000::/home/vscode:/bin/bash' >>/etc/passwd
  echo 'vscode:*:65000:' >>/etc/group
  install -d -o 65000 -g 65000 -m 755 /home/vscode
  echo '# UNCONFIGURED FSTAB FOR BASE SYSTEM' >/etc/fstab
  # In the order in which packages were unpacked.
  triggers=/var/lib/dpkg/triggers/File
  [ ! -s "$triggers" ] || LC_ALL=C sort -o "$triggers" "$triggers"
  # The files of a running system, except the target of /var/lock (Debian Policy 9.1.4).
  find /run -mindepth 1 -maxdepth 1 ! -name lock -exec rm -rf --one-file-system {} +
fi
for path in $drop; do rm -rf "/${path:?}"; done

# Changes the owner of a file or folder, which would clear set-id bits.
give() {
  mode=$(stat -c %a "$2")
  chown "$1" "$2"
  chmod "$mode" "$2"
}
# Owners are those of the packages' own lists, also where what a script asked for was done. Other files of an image keep theirs.
if [ -z "$TOOLS" ]; then
  files ! \( -uid 0 -gid 0 \) -exec chown -h 0:0 {} +
else
  # What is the same as before is there three times.
  printf '%s\n' "$before" "$before" "$(list_owners)" | LC_ALL=C sort | uniq -u | while read -r _ path; do
    [ -n "$path" ] || continue
    owner=0:0
    while read -r old known; do [ "$known" != "$path" ] || owner=$old; done <<BEFORE
$before
BEFORE
    if [ -L "$path" ]; then chown -h "$owner" "$path"; else give "$owner" "$path"; fi
  done
fi
while read -r owner path; do
  if [ -e "/$path" ] && [ ! -L "/$path" ]; then give "$owner" "/$path"; fi
done <"$unpacked/owners"
