MASTER_ADDR=${hosts[0]##*@}$master_suffix
MASTER_PORT=$((20000 + $$ % 12000)) # below the ephemeral ports

# Starts a shell on that host, which reads its script from stdin. It has its own session, so that Ctrl-C reaches only this
# script. ssh uses the first of two equal options, so the site's win.
reach() {
  setsid --wait ssh "${ssh_options[@]}" -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4 \
    -- "$1" exec bash -s
}
