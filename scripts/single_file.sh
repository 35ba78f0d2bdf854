#!/bin/sh
# envbuilder @version@ for @machine@ Linux with glibc, with a Python and all packages of its own. The first start unpacks
# them into the caches of the user. Later ones begin there.
set -eu
name=@version@-@digest@
home=${XDG_CACHE_HOME:-${HOME-}/.cache}/envbuilder-app

refuse() {
  printf 'error: %s\n\nhint: %s\n' "$1" "$2" >&2
  exit 8
}

# Only the user may write it: what lies there is started.
is_closed() {
  [ -n "$(find "$home" -prune -type d -user "$(id -u)" ! -perm -020 ! -perm -002 2>/dev/null)" ]
}

if [ "$(uname -s) $(uname -m)" != "Linux @machine@" ]; then
  refuse "this file is for @machine@ Linux, and this is $(uname -s) $(uname -m)" "each release has a file for x86_64 and one for aarch64"
fi
if [ ! -d "$home/$name" ]; then
  (umask 077 && mkdir -p "$home") 2>/dev/null || refuse "\`$home\` could not be made" "set XDG_CACHE_HOME to a folder of yours"
  is_closed || refuse "\`$home\` must be a folder of yours that nobody else can write" "set XDG_CACHE_HOME to another one"
  printf 'envbuilder: unpacking into %s, once\n' "$home/$name" >&2
  scratch=$(mktemp -d "$home/new-XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  trap 'exit 130' INT TERM HUP
  tail -n +@lines@ "$0" | { gzip -dc 2>/dev/null || : >"$scratch/damaged"; } | tar -xf - -C "$scratch" --no-same-owner 2>/dev/null ||
    : >"$scratch/damaged"
  if [ -e "$scratch/damaged" ]; then
    refuse "envbuilder could not be unpacked into \`$home\`" "it needs 250 MB there; if they are free, \`$0\` is damaged: compare it with SHA256SUMS, and get it again"
  fi
  "$scratch/app/usr/bin/python3" -I -c '' 2>/dev/null ||
    refuse "no program can be started in \`$home\`" "XDG_CACHE_HOME names a folder where programs may run (not \`noexec\`)"
  mv -T "$scratch/app" "$home/$name" 2>/dev/null || [ -d "$home/$name" ] || refuse "\`$home/$name\` could not be made" "set XDG_CACHE_HOME"
  rm -rf "$scratch"
  trap - EXIT INT TERM HUP
fi
is_closed || refuse "\`$home\` must be a folder of yours that nobody else can write" "set XDG_CACHE_HOME to another one"
exec "$home/$name/usr/bin/envbuilder" "$@"
