"""`diagnose` on a node with Python 3.9 and nothing else of ours."""

import hashlib
import io
import subprocess
import urllib.request
from pathlib import Path

import pytest

from envbuilder.diagnose import as_text, diagnose
from tests.support.excerpts import TEXTS, alone, answers_alone

pytestmark = pytest.mark.builds
POOL = "http://deb.debian.org/debian/pool/main/p/python3.9/"
PACKAGES = {
    "libpython3.9-minimal": "594283526d67e03e3c4e96534f6bfe5da1bf41da5d49360553c9b79fbf08c4ab",
    "libpython3.9-stdlib": "32ac64d959ac2dbc5bb289532fc9834dab8f671b5455695a3a9315aad973c65b",
    "python3.9-minimal": "5d6003c5c20223a2547ac4976e09a9ec778dbe351507a6292bef3b60df5f4aa7",
}


@pytest.fixture
def python(tmp_path: Path) -> str:
    for name, sha256 in PACKAGES.items():
        path = tmp_path / f"{name}.deb"
        with urllib.request.urlopen(f"{POOL}{name}_3.9.2-1_amd64.deb", timeout=60) as answer:
            path.write_bytes(answer.read())
        assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256
        subprocess.run(["dpkg-deb", "-x", path, tmp_path / "root"], check=True)
    return str(tmp_path / "root/usr/bin/python3.9")


def test_every_log_has_the_same_answer(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ours = [as_text(diagnose(["-"], io.BytesIO(text))) for text in TEXTS]
    monkeypatch.setenv("PYTHONHOME", str(tmp_path / "root/usr"))
    assert answers_alone(alone(tmp_path / "copy"), python) == ours
