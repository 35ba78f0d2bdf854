"""`diagnose` on a node with Python 3.9 and nothing else of ours."""

import io
import subprocess
from pathlib import Path

import pytest

from envbuilder.core.cache import Sha256, Store
from envbuilder.diagnose import as_text, diagnose
from envbuilder.lock.model import Artifact
from tests.support.excerpts import TEXTS, alone, answers_alone
from tests.support.workbench import CACHE, resolve_context

pytestmark = pytest.mark.builds
VERSION = "3.9.2-1"
PACKAGES = tuple(
    Artifact(
        kind="deb", name=name, version=VERSION, sha256=Sha256(sha256), size=size, source="debian",
        path=f"pool/main/p/python3.9/{name}_{VERSION}_amd64.deb",
    )
    for name, sha256, size in (
        ("libpython3.9-minimal", "594283526d67e03e3c4e96534f6bfe5da1bf41da5d49360553c9b79fbf08c4ab", 800628),
        ("libpython3.9-stdlib", "32ac64d959ac2dbc5bb289532fc9834dab8f671b5455695a3a9315aad973c65b", 1683644),
        ("python3.9-minimal", "5d6003c5c20223a2547ac4976e09a9ec778dbe351507a6292bef3b60df5f4aa7", 1955456),
    )
)  # fmt: skip


@pytest.fixture
def python(tmp_path: Path) -> str:
    resolve_context().fetcher.fetch(PACKAGES)
    for package in PACKAGES:
        deb = Store(CACHE).artifact(package.sha256)
        subprocess.run(["dpkg-deb", "-x", deb, tmp_path / "root"], check=True)
    return str(tmp_path / "root/usr/bin/python3.9")


def test_every_log_has_the_same_answer(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ours = [as_text(diagnose(["-"], io.BytesIO(text))) for text in TEXTS]
    monkeypatch.setenv("PYTHONHOME", str(tmp_path / "root/usr"))
    assert answers_alone(alone(tmp_path / "copy"), python) == ours
