"""Wrong inputs that people make, as a table: each has its exit code, names what is wrong and where, and changes no file."""

import json
import re
import shlex
import shutil
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import TypeAdapter

from envbuilder.sources.http import session
from tests.support import command_line
from tests.support.command_line import Call
from tests.support.toys import write_recipe_sif

ROOT = Path(__file__).parents[2]
LINES = 15  # an answer fits on a screen
NETWORK = [
    f"ENVBUILDER_{name}"
    for name in ("INDEX", "PYTORCH_INDEX", "DEBIAN_MIRROR", "DEBIAN_SECURITY", "UBUNTU_MIRROR")
]
WITHOUT_JSON = ("exec", "launch")
call = command_line.call


@dataclass(frozen=True, kw_only=True)
class Row:
    """One wrong input; the head of the table explains the keys."""

    run: str = ""
    cpu: tuple[str, str] | None = None
    a100: tuple[str, str] | None = None
    site: tuple[str, str] | None = None
    lock: tuple[str, str] | None = None
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    hex: dict[str, str] = field(default_factory=dict)
    utf16: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    code: Literal[0, 2, 3, 4, 5, 7, 8, 9] = 2
    err: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        return shlex.split(self.run or ("check a100" if self.a100 else "check cpu"))

    @property
    def edits(self) -> dict[str, tuple[str, str]]:
        pairs = {
            "recipes/cpu.yaml": self.cpu, "recipes/a100.yaml": self.a100, "sites/site.yaml": self.site,
            "recipes/cpu.lock": self.lock,
        }  # fmt: skip
        return {name: pair for name, pair in pairs.items() if pair}


TABLE = TypeAdapter(dict[str, Row], config={"extra": "forbid"}).validate_python(
    tomllib.loads(Path(__file__).with_name("wrong_inputs.toml").read_text(encoding="utf-8"))
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a person has it: recipes with locks, SIFs, a site profile, keys and a project."""
    folder = tmp_path_factory.mktemp("sample")
    for name in ("recipes/cpu.yaml", "recipes/cpu.lock", "recipes/a100.yaml", "recipes/a100.lock"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "recipes/fused", folder / "recipes/fused")
    for name in ("sites", "sifs", "project"):
        (folder / name).mkdir()
    shutil.copy(ROOT / "sites/slurm-generic.yaml", folder / "sites/site.yaml")
    for name in ("train.py", "project/train.py"):
        (folder / name).write_text("import torch\n")
    (folder / "project/requirements.txt").write_text("numpy\n")
    pins = {"cpu": ("2.13.0", ""), "a100": ("2.6.0", "12.4"), "none": ("", "")}
    for name, (torch, cuda) in pins.items():
        write_recipe_sif(
            folder / f"sifs/{name}.sif",
            json.dumps({"python": "3.11", "pytorch": torch, "cuda": cuda}),
            filler=9999,
        )
    write_recipe_sif(folder / "sifs/foreign.sif", "no recipe")
    whole = (folder / "sifs/cpu.sif").read_bytes()
    (folder / "sifs/cut.sif").write_bytes(whole[: len(whole) // 2])
    key = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (folder / "public.pem").write_bytes(
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    for work in (folder / "sifs").glob("*-work"):
        shutil.rmtree(work)
    return folder


def write(row: Row, folder: Path) -> None:
    for name, (old, new) in row.edits.items():
        before = (folder / name).read_text()
        assert old in before, f"`{name}` has no {old!r}"
        (folder / name).write_text(before.replace(old, new, 1) if old else before + new)
    for name, text in row.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode("utf-16" if name in row.utf16 else "utf-8"))
    for name, digits in row.hex.items():
        (folder / name).write_bytes(bytes.fromhex(digits))
    for name in row.folders:
        (folder / name).mkdir()
    for name, target in row.links.items():
        (folder / name).symlink_to(target)


def state(folder: Path) -> dict[str, object]:
    """Every path below the folder with its mode and what is in it."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (path.lstat().st_mode, content)
    return found


@pytest.fixture
def place(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_environment: Path, row: Row
) -> Path:
    """A copy of the sample with the row's mistake, as the working folder."""
    folder = tmp_path / "here"
    shutil.copytree(sample, folder)
    write(row, folder)
    home = tmp_path / "home"
    home.mkdir()
    settings = dict.fromkeys(NETWORK, "http://127.0.0.1:9/") | {
        "ENVBUILDER_DEBIAN_SNAPSHOT": "", "HOME": str(home), "DOCKER_HOST": "unix:///nonexistent"
    }  # fmt: skip
    for name, value in (settings | row.env).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(session, "PAUSES", (0.0, 0.0, 0.0))  # nobody answers there
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in TABLE.items()])
def test_a_wrong_input_is_named_and_changes_nothing(call: Call, place: Path, tmp_path: Path, row: Row):
    before = state(place)
    answer = call(*row.words)
    assert answer.code == row.code, answer.err
    assert [word for word in row.err if word not in answer.err] == [], answer.err
    assert "Traceback" not in answer.err
    assert row.code == 0 or re.search(r"hint: |[Ee]xpected | takes ", answer.err), answer.err
    assert len(answer.err.splitlines()) <= LINES, answer.err
    assert row.code == 0 or not answer.out or answer.out.startswith("errors: 1, ")  # the last line of `lint`
    changed = {path for path, _ in state(place).items() ^ before.items()}
    assert changed <= {"build", "build/cpu.log"}  # each build has its log
    assert list((tmp_path / "home").iterdir()) == []
    if row.words[0] not in WITHOUT_JSON:
        again = call(row.words[0], "--json", *row.words[1:])
        envelope = json.loads(again.out)
        assert (again.code, envelope["exit_code"], bool(envelope["findings"])) == (row.code, row.code, True)
