"""Check files: permissions, set-id programs, secrets, and certificate authorities of a proxy."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Final

from envbuilder.core.findings import Finding, Severity
from envbuilder.layers.entry import Entry, Kind
from envbuilder.verify.audit.audited_image import AuditCode, AuditedImage

# Debian's own set-id programs, in every root or in packages that recipes add. They keep their bits: Apptainer
# mounts images without set-uid, containers of the Docker engine need `su` and `passwd`, and without the bits
# `dpkg --verify` and the next upgrade would find differences.
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


def check_rights(image: AuditedImage) -> Iterator[Finding]:
    for path, entry in image.paths.items():
        if entry.kind is Kind.LINK:
            continue
        is_sticky = entry.kind is Kind.DIRECTORY and bool(entry.mode & 0o1000)
        is_device = entry.kind is Kind.SPECIAL and path.startswith("dev/")
        if entry.mode & 0o002 and not is_sticky and not is_device:
            yield Finding(
                code=AuditCode.WRITABLE, severity=Severity.ERROR, where=f"/{path}",
                message=f"everybody can write it (mode {entry.mode:04o})",
                hint="whoever shares the machine could change what the next user runs",
            )  # fmt: skip
        if entry.kind is Kind.FILE and entry.mode & SET_ID and not _is_of_debian(path):
            user = f"of user {entry.uid}" if entry.mode & 0o4000 else f"of group {entry.gid}"
            yield Finding(
                code=AuditCode.SET_ID, severity=Severity.WARNING, where=f"/{path}",
                message=f"it runs with the rights {user} (mode {entry.mode:04o})",
                hint="take the bit away unless this program is known to need it",
            )  # fmt: skip


def _is_of_debian(path: str) -> bool:
    """Roots without a merged /usr have some of them in /bin and /sbin."""
    return path in OF_DEBIAN or f"usr/{path}" in OF_DEBIAN


LARGE: Final = 1 << 20  # bytes; larger files were not written by a person
PLACES: Final = re.compile(r"(etc|root|home|tmp|srv|mnt|opt|usr/local|var|run|\.singularity\.d)/")
PACKAGES: Final = (
    "opt/env/", "opt/python/", "usr/local/cuda", "var/lib/dpkg/info/", "opt/envbuilder/extensions/"
)  # fmt: skip
KEEPERS: Final = re.compile(
    r"\.netrc|_netrc|\.pypirc|\.npmrc|\.git-credentials|\.gitconfig|\.pgpass|\.env|pip\.conf|pip\.ini|uv\.toml|direct_url\.json|credentials(\.json)?"
    r"|config\.json|auth\.conf|id_(rsa|dsa|ecdsa|ed25519)|.+\.pth|pyvenv\.cfg"
)
PATTERNS: Final = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("a private key", rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"),
        ("a token of GitHub", rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60})"),
        ("a token of GitLab", rb"\bglpat-[A-Za-z0-9_-]{20}"),
        ("a token of Hugging Face", rb"\bhf_[A-Za-z0-9]{30}"),
        ("a token of a package index", rb"\bpypi-AgE[A-Za-z0-9_-]{50}"),
        ("a key of Amazon", rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
        ("a key of Weights & Biases", rb"(?i)wandb[^\n]{0,20}\b[0-9a-f]{40}\b"),
        ("a token of Slack", rb"\bxox[abprs]-[A-Za-z0-9-]{20}"),
        (
            "a password in a URL",
            rb"\b[a-z][a-z0-9+.-]{1,15}://[^\s/@:\"'$<{]{1,64}:[^\s/@\"'$<{*]{3,}@[A-Za-z0-9\[]",
        ),
        ("a password for a host", rb"(?m)^[ \t]*machine\s+\S+\s+login\s+\S+\s+password\s+\S+"),
        ("a token of a registry", rb"\"auth\"\s*:\s*\"[A-Za-z0-9+/=]{8,}\"|_authToken\s*=\s*\S{8}"),
    )
)
# In settings, as `ENV` and `ARG` leave it. A path or a variable is not a secret itself.
NAMED: Final = re.compile(
    r"(?i)(?<![\w.-])[\w.-]*(?:password|passwd|secret|token|api_?key|access_?key)=(?![\"']?[/$*])[\"']?[^\s\"']{6,}"
)
# Identities that a package makes when it is installed: everybody with the image could pose as that machine.
IDENTITIES: Final = re.compile(
    r"etc/(machine-id|ssh/ssh_host_\w+_key|munge/munge\.key)|var/lib/(dbus/machine-id|systemd/random-seed)"
)
BUNDLE: Final = "etc/ssl/certs/ca-certificates.crt"
LOCAL_AUTHORITIES: Final = "usr/local/share/ca-certificates/"
OF_PACKAGES: Final = "usr/share/ca-certificates/"
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")


# This module is the `FileScanner` for the reader of layers.


def wants(entry: Entry) -> bool:
    """Return whether a file may hold a secret.

    Outside packages, these are settings, homes, and files beside the Python environment. Inside packages,
    only files in which tools keep credentials: keys in a package's tests are no secrets.
    """
    if entry.size > LARGE:
        return False
    if KEEPERS.fullmatch(posixpath.basename(entry.path)):
        return True
    return PLACES.match(entry.path) is not None and not entry.path.startswith(PACKAGES)


def finds(content: bytes) -> Iterator[str]:
    """Yield the kinds of secrets in a file."""
    return (name for name, pattern in PATTERNS if pattern.search(content))


def check_secrets(image: AuditedImage) -> Iterator[Finding]:
    texts = [(f"the environment's {name}", f"{name}={value}") for name, value in image.outside.environment]
    texts += [(f"the image's {place}", text) for place, text in image.outside.texts]
    for place, text in texts:
        known = tuple(finds(text.encode()))
        for what in known or (["a secret by its name"] if NAMED.search(text) else []):
            yield _secret(place, what)
    for path, what in image.outside.hidden:
        yield _secret(f"/{path} of a lower layer", what)
    for path, entry in image.paths.items():
        if entry.kind is not Kind.FILE or not entry.size:
            continue
        if IDENTITIES.fullmatch(path):
            yield _secret(f"/{path}", "an identity of one machine")
        elif wants(entry):
            for what in finds(image.read(path)):
                yield _secret(f"/{path}", what)
    yield from _authorities(image)


def _secret(where: str, what: str) -> Finding:
    """Return the finding: the kind and the place, never the secret itself."""
    return Finding(
        code=AuditCode.SECRET, severity=Severity.ERROR, where=where, message=f"it holds {what}",
        hint="whoever gets the image has it: replace the secret at its service, then find out what put it there",
    )  # fmt: skip


def _authorities(image: AuditedImage) -> Iterator[Finding]:
    """Find certificates in the bundle that no package brings, such as that of a TLS proxy of the build machine."""
    for path in sorted(image.paths):
        if path.startswith(LOCAL_AUTHORITIES) and image.paths[path].kind is Kind.FILE:
            yield _authority(path, "it is a certificate authority of this place's own")
    if BUNDLE not in image.paths or image.real(BUNDLE) is None:
        return
    known: set[bytes] = set()
    for path, entry in image.paths.items():
        if path.startswith(OF_PACKAGES) and entry.kind is Kind.FILE:
            known |= _certificates(image, path)
    strange = _certificates(image, image.real(BUNDLE) or BUNDLE) - known
    if strange and known:
        yield _authority(BUNDLE, f"{len(strange)} of its certificate authorities came with no package")


def _certificates(image: AuditedImage, path: str) -> set[bytes]:
    return {b"".join(found.split()) for found in _CERTIFICATE.findall(image.read(path))}


def _authority(path: str, message: str) -> Finding:
    return Finding(
        code=AuditCode.AUTHORITY, severity=Severity.ERROR, where=f"/{path}", message=message,
        hint="whoever holds its key could read this environment's connections: build without it, as `fetch` needs it and the image does not",
    )  # fmt: skip
