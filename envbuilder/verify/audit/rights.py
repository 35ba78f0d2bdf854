"""Find unsafe permissions: files that everybody can write, and programs that run with another user's rights."""

from collections.abc import Iterator, Mapping
from typing import Final

from envbuilder.core.findings import Finding, Severity
from envbuilder.layers.entry import Kind
from envbuilder.verify.audit.case import Case, Code

# Debian's own, from the packages that every root has or that such recipes add. They stay as Debian made them: Apptainer mounts
# images without set-uid, containers of the Docker engine need `su` and `passwd` as every Debian, and taking the bits away would make
# `dpkg --verify` and the next upgrade disagree with what is there.
OF_DEBIAN: Final[Mapping[str, str]] = {
    "usr/bin/chage": "passwd", "usr/bin/chfn": "passwd", "usr/bin/chsh": "passwd", "usr/bin/expiry": "passwd",
    "usr/bin/gpasswd": "passwd", "usr/bin/newgrp": "login", "usr/bin/passwd": "passwd",
    "usr/bin/mount": "mount", "usr/bin/su": "util-linux", "usr/bin/umount": "mount",
    "usr/bin/wall": "util-linux", "usr/bin/write": "bsdutils", "usr/bin/write.ul": "bsdutils",
    "usr/bin/crontab": "cron", "usr/bin/ssh-agent": "openssh-client", "usr/bin/sudo": "sudo",
    "usr/lib/dbus-1.0/dbus-daemon-launch-helper": "dbus", "usr/lib/openssh/ssh-keysign": "openssh-client",
    "usr/sbin/unix_chkpwd": "libpam-modules-bin",
}  # fmt: skip
SET_ID: Final = 0o6000


def check_rights(case: Case) -> Iterator[Finding]:
    for path, entry in case.paths.items():
        if entry.kind is Kind.LINK:
            continue
        is_sticky = entry.kind is Kind.DIRECTORY and bool(entry.mode & 0o1000)
        if (
            entry.mode & 0o002
            and not is_sticky
            and not (entry.kind is Kind.SPECIAL and path.startswith("dev/"))
        ):
            yield Finding(
                code=Code.WRITABLE, severity=Severity.ERROR, where=f"/{path}", message=f"everybody can write it (mode {entry.mode:04o})",
                hint="whoever shares the machine could change what the next user runs",
            )  # fmt: skip
        if entry.kind is Kind.FILE and entry.mode & SET_ID and not _is_of_debian(path):
            user = f"of user {entry.uid}" if entry.mode & 0o4000 else f"of group {entry.gid}"
            yield Finding(
                code=Code.SET_ID, severity=Severity.WARNING, where=f"/{path}", message=f"it runs with the rights {user} (mode {entry.mode:04o})",
                hint="take the bit away unless this program is known to need it",
            )  # fmt: skip


def _is_of_debian(path: str) -> bool:
    """Roots before the merge of /usr have some of them in /bin and /sbin."""
    return path in OF_DEBIAN or f"usr/{path}" in OF_DEBIAN
