#!/usr/bin/env bash
set -euo pipefail

name=a100
sif='/scratch/it'"'"'s mine/a100.sif'
client='ssh-ed25519 BBBB'
modules=(apptainer/1.3)
enter='#!/usr/bin/env bash
# Runs a command in the environment a100. Written by envbuilder VERSION; it runs without envbuilder.
# shellcheck disable=SC2016,SC1003 # settings are quoted as data
set -euo pipefail

name=a100
sif='"'"'/scratch/it'"'"'"'"'"'"'"'"'s mine/a100.sif'"'"'
apptainer=apptainer
binds=("${SCRATCH:+$SCRATCH}")
left_out=(CC CXX CPP AR LD LDSHARED RANLIB CUDAHOSTCXX CUDACXX NVCC_CCBIN PYTORCH_NVCC TRITON_PTXAS_PATH COMPILER_PATH GCC_EXEC_PREFIX TORCH_CUDA_ARCH_LIST LD_PRELOAD LD_AUDIT PYTHONHOME PYTHONPLATLIBDIR PYTHONSTARTUP PYTHONUSERBASE PYTHONEXECUTABLE BASH_ENV ENV PROMPT_COMMAND VIRTUAL_ENV '"'"'CONDA_*'"'"' _CE_CONDA _CE_M)
untold=(PYTHONSTARTUP PYTHONUSERBASE PYTHONEXECUTABLE BASH_ENV ENV PROMPT_COMMAND VIRTUAL_ENV '"'"'CONDA_*'"'"' _CE_CONDA _CE_M SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE XDG_RUNTIME_DIR)
image_trees=(/bin /boot /dev /etc /lib /lib64 /opt/env /opt/envbuilder /proc /run /sbin /sys /usr)
image_folders=(/ /home /media /mnt /opt /root /srv /tmp /var /var/tmp)
shared_trees=(/tmp /var/tmp)
start_files=(.bashrc .bash_profile .bash_login .profile)

# Drops variables of the machine'"'"'s conda, modules and tools that would bring another Python, other libraries or start files
# into the environment. Of PYTHONPATH, the project'"'"'s own folders stay. APPTAINERENV_NAME passes one on purpose. The SIF leaves
# out the same and more. Adds the names to `lost`, except those that many machines set for every user.
keep_out() {
  local name entry kept='"'"''"'"' entries=() IFS='"'"'|'"'"'
  local pattern="@(${left_out[*]})" silent="@(${untold[*]})"
  unset IFS
  if [ "${ENVBUILDER_SHELL-}" = off ]; then return; fi
  for name in $(compgen -e); do
    # shellcheck disable=SC2053 # patterns
    if [[ $name == $pattern ]]; then
      unset "$name"
      # shellcheck disable=SC2053
      [[ $name == $silent ]] || lost+=" $name"
    fi
  done
  if [ -z "${PYTHONPATH-}" ]; then return; fi
  IFS=: read -ra entries <<<"$PYTHONPATH"
  for entry in "${entries[@]}"; do
    case $entry/ in
      / | */site-packages/* | */dist-packages/*) ;;
      "$1"/*) [ "$1" = "${HOME-}" ] || kept+=:$entry ;;
      /*) ;;
      *) kept+=:$entry ;;
    esac
  done
  [ "${kept#:}" = "$PYTHONPATH" ] || lost+='"'"' PYTHONPATH'"'"'
  if [ -n "$kept" ]; then export PYTHONPATH=${kept#:}; else unset PYTHONPATH; fi
}

case ${0##*/} in
  "$name-exec")
    case ${1-} in
      --) shift ;;
      -*)
        printf '"'"'%s: there is no option %s\nhint: a program and its options: %s python -V\n'"'"' "$name-exec" "$1" "$name-exec" >&2
        exit 2
        ;;
    esac
    [ "$#" -gt 0 ] || set -- /bin/bash
    ;;
  *) set -- "${0##*/}" "$@" ;;
esac

# Prints the checkout that holds this folder, so that ../data works inside, or the folder itself.
project() {
  local folder=$PWD
  until [ -e "$folder/.git" ]; do
    if [ -z "$folder" ]; then
      printf %s "$PWD"
      return
    fi
    folder=${folder%/*}
  done
  printf %s "$folder"
}

# Succeeds if a mount there hides nothing of the image.
hides_nothing() {
  local tree
  for tree in "${image_folders[@]}"; do
    if [ "$1" = "$tree" ]; then return 1; fi
  done
  for tree in "${image_trees[@]}"; do
    if [[ $1/ == "$tree"/* ]]; then return 1; fi
  done
  [[ $1 == /* ]]
}

# By default, Apptainer mounts these itself.
is_shared() {
  local tree
  for tree in "${shared_trees[@]}"; do
    if [[ $1 != *:* && $1/ == "$tree"/* ]]; then return 0; fi
  done
  return 1
}

if [ ! -r "$sif" ]; then
  printf '"'"'%s: cannot read %s: was it moved, or is its file system not on this machine?\n'"'"' "${0##*/}" "$sif" >&2
  exit 1
fi
project=$(project)
keep_out "$project"
export ENVBUILDER_SHELL=${ENVBUILDER_SHELL:-quiet} # many short commands
# Packages of ~/.local would shadow the environment'"'"'s, and the SIF may lack your own shell.
options=(--env PYTHONNOUSERSITE=1 --env SHELL=/bin/bash)
[ ! -e /dev/nvidiactl ] || options+=(--nv)
for folder in "$project" "${TMPDIR-}"; do
  if [ -d "$folder" ] && hides_nothing "$folder" && ! is_shared "$folder"; then options+=(--bind "$folder"); fi
done
for bind in "${binds[@]}"; do
  if [ -e "${bind%%:*}" ] && ! is_shared "$bind"; then options+=(--bind "$bind"); fi
done
# After the other mounts, which may hold your home. In a SIF, HOME is the account'"'"'s, whatever it is here.
files=(/etc/profile "${start_files[@]/#/${HOME-}/}")
account=$(getent passwd "$UID" | cut -d: -f6) || :
[ "$account" = "${HOME-}" ] || files+=("${start_files[@]/#/$account/}")
for file in "${files[@]}"; do
  [ ! -f "$file" ] || options+=(--bind "${0%/*}/start_file.sh:$file:ro")
done
# With env, a program that is not there ends with 127 and not with 255.
exec "$apptainer" exec "${options[@]}" "$sif" env "$@"
'
start_file='# In an environment, shells read this file in place of your ~/.bashrc and ~/.profile, which may start another Python.
case $- in *i*) [ ! -r ~/.envbuilder/bashrc ] || . ~/.envbuilder/bashrc ;; esac
'

fail() {
  printf '%s: %s\n' "$(uname -n)" "$*" >&2
  exit 1
}

[ -r "$sif" ] || fail "there is no SIF $sif"
PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin
sshd=$(command -v sshd) || fail "sshd is not installed; it serves the sessions in the environment"
sftp=
for place in /usr/lib/openssh /usr/libexec/openssh /usr/lib/ssh /usr/libexec; do
  [ ! -x "$place/sftp-server" ] || sftp=$place/sftp-server
done

umask 077
folder=$HOME/.envbuilder/ssh/$name
mkdir -p "$folder"
[ -e "$folder/host_key" ] || ssh-keygen -q -t ed25519 -N '' -C "envbuilder-$name" -f "$folder/host_key"
printf '%s\n' "$client" >"$folder/authorized_keys"
cat >"$folder/sshd_config" <<END
# Your own sshd. It listens on no port: the machine's sshd starts it for each connection.
HostKey "$folder/host_key"
AuthorizedKeysFile "$folder/authorized_keys"
AuthenticationMethods publickey
StrictModes no
UsePAM no
PidFile none
X11Forwarding no
${sftp:+Subsystem sftp $sftp}
ForceCommand exec "$folder/session"
END
printf '%s' "$enter" >"$folder/$name-exec"
printf '%s' "$start_file" >"$folder/start_file.sh"
cat >"$folder/session" <<END
#!/usr/bin/env bash
# Runs a command or a shell in the environment. sftp runs outside it, because the files are the same.
modules=(${modules[*]@Q})
command=\${SSH_ORIGINAL_COMMAND-}
unset SSH_ORIGINAL_COMMAND
[ -z "\$command" ] || [ "\$command" != "$sftp" ] || exec "$sftp"
if [ "\${#modules[@]}" -gt 0 ]; then
  type module >/dev/null 2>&1 || . /etc/profile
  module load "\${modules[@]}" || exit
fi
[ -z "\$command" ] || exec "$folder/$name-exec" bash -c "\$command"
exec "$folder/$name-exec" bash
END
cat >"$folder/serve" <<END
#!/bin/sh
exec "$sshd" -i -E "$folder/log" -f "$folder/sshd_config"
END
chmod 700 "$folder/serve" "$folder/session" "$folder/$name-exec"
"$sshd" -t -f "$folder/sshd_config" || fail "sshd rejects $folder/sshd_config"
printf '%s\n' "$(id -un)" "$(cat "$folder/host_key.pub")"
