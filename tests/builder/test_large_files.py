"""Large files of wheels: the layer is the same as with all files unpacked, and what contradicts its RECORD is refused."""

import base64
import hashlib
import os
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.builder.sandbox.large_files import empty_large_files
from envbuilder.core.cache import Sha256, sha256_file
from envbuilder.core.errors import BuildError
from envbuilder.layers.layer import Layer, Streamed, write_layer
from envbuilder.plan.program import Program
from tests.support.plans import wheel as make_wheel

SITE = "/opt/env/lib/python3.11/site-packages"
FILES = {
    "big/__init__.py": b"import big.lib\n",
    "big/lib.so": os.urandom(1000) * 3000,  # of more than two chunks
    "big/data.bin": os.urandom(300_000),
    "big/small.so": b"small",
    "big/generated.py": b"value = 1\n" * 40_000,
    "big-1.0.data/scripts/tool": b"#!python\n" + b"# long\n" * 60_000,
}


def record_of(files: Mapping[str, bytes]) -> str:
    def line(name: str, content: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(content)}\n"

    return "".join(line(*item) for item in files.items())


def write_wheel(folder: Path, files: Mapping[str, bytes], record: str) -> tuple[Program, Path]:
    """Write a step's folder with one wheel, as `prepare_run` does. Returns the program and the wheel."""
    path = folder / "step" / "inputs" / "big-1.0-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in files.items():
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.external_attr = 0o100755 << 16 if name.endswith(".so") else 0o100644 << 16
            is_stored = name.endswith(".bin")
            written.writestr(info, content, zipfile.ZIP_STORED if is_stored else zipfile.ZIP_DEFLATED)
        written.writestr("big-1.0.dist-info/RECORD", record)
    locked = replace(make_wheel("big", "1.0"), sha256=Sha256(sha256_file(path)))
    spec = f'{{"requirements": ["big==1.0 --hash=sha256:{locked.sha256}"]}}\n'
    program = Program(
        name="python", files=("wheels.py",), interpreter="/usr/bin/python3.11", root=(), spec=spec,
        inputs=((path.name, locked),),
    )  # fmt: skip
    (folder / "step" / "spec.json").write_text(spec, encoding="utf-8")
    return program, path


def unpack(wheel: Path, tree: Path) -> None:
    site = tree / SITE[1:]
    site.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def pack(folder: Path, contents: Mapping[str, Streamed] | None = None) -> Layer:
    return write_layer(
        name="python", tree=folder / "tree", folder=folder / "layer", epoch=0, threads=2, contents=contents
    )


def emptied(folder: Path, files: Mapping[str, bytes], record: str) -> dict[str, Streamed]:
    """Write the wheel, empty its large files and unpack the rest, as uv does. Returns the contents of the large ones."""
    program, path = write_wheel(folder, files, record)
    contents = empty_large_files(program, folder, SITE)
    unpack(path, folder / "tree")
    return contents


def test_the_layer_is_that_of_the_wheel_unpacked(tmp_path: Path):
    _, whole = write_wheel(tmp_path / "a", FILES, record_of(FILES))
    unpack(whole, tmp_path / "a" / "tree")
    contents = emptied(tmp_path / "b", FILES, record_of(FILES))
    assert {path.removeprefix(f"{SITE[1:]}/") for path in contents} == {"big/lib.so", "big/data.bin"}
    assert (tmp_path / "b/tree" / SITE[1:] / "big/lib.so").stat().st_size == 0
    first, second = pack(tmp_path / "a"), pack(tmp_path / "b", contents)
    assert (first.digest, first.tree, first.blocks) == (second.digest, second.tree, second.blocks)


def test_the_program_is_given_the_digest_of_the_copy(tmp_path: Path):
    program, path = write_wheel(tmp_path, FILES, record_of(FILES))
    before = program.inputs[0][1].sha256
    empty_large_files(program, tmp_path, SITE)
    spec = (tmp_path / "step" / "spec.json").read_text(encoding="utf-8")
    assert before not in spec
    assert sha256_file(path) in spec


def test_a_content_that_contradicts_record_is_refused(tmp_path: Path):
    contents = emptied(tmp_path, FILES, record_of(FILES | {"big/lib.so": b"other"}))
    with pytest.raises(BuildError, match=r"`opt/env/.*/big/lib\.so` has the sha256 .*, and its package says"):
        pack(tmp_path, contents)


def test_a_damaged_content_is_named(tmp_path: Path):
    contents = emptied(tmp_path, FILES, record_of(FILES))
    whole = tmp_path / "wheels" / "big-1.0-py3-none-any.whl"
    with zipfile.ZipFile(whole) as archive:
        at = archive.getinfo("big/lib.so").header_offset + 1000
    content = bytearray(whole.read_bytes())
    content[at : at + 400] = b"\xff" * 400
    whole.write_bytes(content)
    with pytest.raises(BuildError, match="big/lib"):
        pack(tmp_path, contents)


def test_a_large_file_that_was_not_installed_is_an_error(tmp_path: Path):
    contents = emptied(tmp_path, FILES, record_of(FILES))
    (tmp_path / "tree" / SITE[1:] / "big/data.bin").unlink()
    with pytest.raises(BuildError, match=r"not installed:\n.*big/data\.bin"):
        pack(tmp_path, contents)


@pytest.mark.parametrize(
    ("files", "record"),
    [
        (FILES, ""),
        (FILES, record_of(FILES).replace("sha256=", "sha384=")),
        (FILES | {"big.pth": b"import big.lib\n"}, record_of(FILES)),
        ({"big/small.so": b"small"}, record_of({"big/small.so": b"small"})),
    ],
)
def test_other_wheels_stay_as_they_are(tmp_path: Path, files: dict[str, bytes], record: str):
    program, path = write_wheel(tmp_path, files, record)
    before = path.read_bytes()
    assert empty_large_files(program, tmp_path, SITE) == {}
    assert path.read_bytes() == before
    assert (tmp_path / "step" / "spec.json").read_text(encoding="utf-8") == program.spec
