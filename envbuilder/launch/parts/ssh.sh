MASTER_ADDR=${hosts[0]##*@}$master_suffix
MASTER_PORT=$((20000 + $$ % 12000)) # below the ports that connections get by themselves

# A shell on that host, which reads what it is to do. Ctrl-C is for us alone.
reach() {
  setsid --wait ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "${ssh_options[@]}" \
    "$1" exec bash -s
}
