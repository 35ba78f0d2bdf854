"""This machine as another one: a real sshd on loopback, and an `ssh` that reaches it as `loopback`."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

SETTINGS = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/me.pub
PidFile none
StrictModes no
PermitRootLogin yes
Subsystem sftp internal-sftp
"""


@contextlib.contextmanager
def loopback_sshd(folder: Path) -> Iterator[tuple[Path, int]]:
    """Give the folder of that `ssh`, for PATH, and the number of the sshd's process."""
    (folder / "bin").mkdir(parents=True)
    for name in ("host", "me"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "sshd_config").write_text(SETTINGS.format(port=port, folder=folder))
    options = f"-F none -p {port} -i {folder}/me -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o HostName=127.0.0.1"
    (folder / "bin/ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh {options} "$@"\n')
    (folder / "bin/ssh").chmod(0o755)
    script = (
        f"mount -t tmpfs none /run && mkdir /run/sshd && exec /usr/sbin/sshd -D -e -f {folder}/sshd_config"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "--", "sh", "-c", script], stderr=log, start_new_session=True
        )
        try:
            while f"listening on 127.0.0.1 port {port}" not in (folder / "log").read_text():
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.02)
            yield folder / "bin", process.pid
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
