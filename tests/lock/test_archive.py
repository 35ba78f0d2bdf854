"""Archives that a stranger made: what cannot be read is an error, and no link in one leads out or in a circle."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from envbuilder.core.errors import BuildError
from envbuilder.lock.resolve.project_metadata import archived_files


def write_tar(path: Path, members: dict[str, tuple[bytes, str]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, (kind, target) in members.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            member.size = len(target) if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(target.encode()))
    return path


def test_links_of_an_archive_stay_in_it_and_devices_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    members = {
        "a.h": (tarfile.REGTYPE, "a"),
        "absolute": (tarfile.SYMTYPE, str(tmp_path / "key")),
        "up": (tarfile.SYMTYPE, "../key"),
        "hard": (tarfile.LNKTYPE, "../key"),
        "one": (tarfile.SYMTYPE, "two"),
        "two": (tarfile.SYMTYPE, "one"),
        "fifo": (tarfile.FIFOTYPE, ""),
        "null": (tarfile.CHRTYPE, ""),
        "same": (tarfile.SYMTYPE, "a.h"),
    }
    found = dict(archived_files(write_tar(tmp_path / "x.tar", members), strip=False))
    assert found == {"a.h": b"a", "same": b"a"}


@pytest.mark.parametrize("kind", ["gzip", "tar", "zip", "empty", "password", "text", "xz"])
def test_a_damaged_archive_is_an_error_that_names_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.archive"
    with tarfile.open(path, "w:xz" if kind == "xz" else "w:gz" if kind == "gzip" else "w") as tar:
        member = tarfile.TarInfo("a.h")
        member.size = 100_000
        tar.addfile(member, io.BytesIO(bytes(range(250)) * 400))
    content = bytearray(path.read_bytes())
    if kind in ("zip", "password"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.h", bytes(range(250)) * 400)
        content = bytearray(path.read_bytes())
        if kind == "password":
            for start in (content.index(b"PK\3\4") + 6, content.index(b"PK\1\2") + 8):
                content[start] |= 1
    cut = {"empty": b"", "text": b"no archive", "password": bytes(content)}
    if kind == "zip":
        content[60:90] = bytes(30)
        cut[kind] = bytes(content)
    path.write_bytes(cut.get(kind, bytes(content[: len(content) // 2])))
    with pytest.raises(BuildError, match=r"x\.archive` cannot be read"):
        list(archived_files(path, strip=False))
