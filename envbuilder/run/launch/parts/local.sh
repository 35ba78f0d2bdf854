hosts=(localhost)
MASTER_ADDR=127.0.0.1
MASTER_PORT=$((20000 + $$ % 12000)) # below the ports that connections get by themselves
while (: <>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; do
  MASTER_PORT=$((MASTER_PORT + 1))
done

# Ctrl-C is for us alone.
reach() { setsid --wait bash -s; }
