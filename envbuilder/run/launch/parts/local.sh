hosts=(localhost)
MASTER_ADDR=127.0.0.1
MASTER_PORT=$((20000 + $$ % 12000)) # below the ephemeral ports
while (: <>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; do
  MASTER_PORT=$((MASTER_PORT + 1))
done

# In its own session, so that Ctrl-C reaches only this script.
reach() { setsid --wait bash -s; }
