MASTER_ADDR=${hosts[0]##*@}$master_suffix
MASTER_PORT=$((20000 + $$ % 12000)) # below the ports that connections get by themselves

# A shell on that host, which reads what it is to do. Ctrl-C is for us alone. Of an option that is given twice ssh takes the first.
reach() {
  setsid --wait ssh "${ssh_options[@]}" -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4 \
    -- "$1" exec bash -s
}
