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
