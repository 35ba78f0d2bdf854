import os
import random
import shutil
import struct
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder import cli
from envbuilder.artifacts.sif import (
    LABELS,
    DataType,
    SifFacts,
    extend_sif,
    opened_sif,
    processor_in,
    read_labels,
    read_sif,
)
from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import BuildError, UsageError, VerifyError
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.core.processor import AARCH64, X86_64
from envbuilder.layers.layer import Layer, write_layer
from tests.support.sifs import write_sif

EPOCH = 1_700_000_000
pytestmark = pytest.mark.programs


@pytest.fixture
def layers(tmp_path: Path) -> list[Layer]:
    return make_layers(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SIF to copy and damage."""
    folder = tmp_path_factory.mktemp("whole")
    write(folder / "a.sif", make_layers(folder))
    return folder / "a.sif"


def make_layers(tmp_path: Path) -> list[Layer]:
    made = []
    for name in ("os", "python"):
        tree = tmp_path / name
        (tree / name).mkdir(parents=True)
        (tree / name / "big").write_bytes(b"".join(n.to_bytes(4, "little") for n in range(500_000)))
        (tree / name / "small").write_text(name)
        (tree / name / "link").symlink_to("/usr/" + "l" * 120)
        made.append(
            write_layer(name=name, tree=tree, folder=tmp_path / f"{name}-layer", epoch=EPOCH, threads=1)
        )
    return made


def identity(sif: Path) -> uuid.UUID:
    return uuid.UUID(bytes=sif.read_bytes()[48:64])


def write(out: Path, layers: list[Layer]) -> SifFacts:
    return write_sif(
        layers=layers, out=out, epoch=EPOCH, definition="# by a test\n", labels={"b": "2", "a": "1"}
    )


def test_the_same_layers_give_the_same_sif(tmp_path: Path, layers: list[Layer]) -> None:
    facts = [write(tmp_path / name, layers) for name in ("a.sif", "b.sif")]
    assert len(set(facts)) == 1
    assert facts[0].sha256 == sha256_file(tmp_path / "a.sif") == sha256_file(tmp_path / "b.sif")
    assert facts[0].size == (tmp_path / "a.sif").stat().st_size


def test_a_sif_that_is_larger_than_the_memory_can_be_written(tmp_path: Path) -> None:
    """What is held while it is written does not grow with it."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/random").write_bytes(random.Random(0).randbytes(48 << 20))
    layer = write_layer(name="os", tree=tmp_path / "tree", folder=tmp_path / "layer", epoch=EPOCH, threads=1)
    tracemalloc.start()
    facts = write(tmp_path / "a.sif", [layer])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert facts.size > 48 << 20
    assert most < 8 << 20


def test_other_content_has_another_identity(tmp_path: Path, layers: list[Layer]) -> None:
    write(tmp_path / "a.sif", layers)
    write(tmp_path / "b.sif", layers[:1])
    assert identity(tmp_path / "a.sif") != identity(tmp_path / "b.sif")


def test_a_sif_is_read_as_it_was_written(tmp_path: Path, layers: list[Layer]) -> None:
    facts = write(tmp_path / "a.sif", layers)
    sif = read_sif(tmp_path / "a.sif")
    assert int.from_bytes((tmp_path / "a.sif").read_bytes()[64:72], "little") == EPOCH
    assert sif.system.offset % 4096 == 0
    assert sif.system.offset + sif.system.size == facts.size
    assert sif.read(DataType.DEFINITION) == b"# by a test\n"
    assert sif.read(DataType.LABELS) == b'{"a":"1","b":"2"}'
    assert sif.read(DataType.SBOM) == b""
    assert os.access(tmp_path / "a.sif", os.X_OK)


def test_a_sif_takes_the_place_of_an_earlier_one_and_leaves_nothing(
    tmp_path: Path, layers: list[Layer]
) -> None:
    out = tmp_path / "out" / "a.sif"
    (tmp_path / "out" / ".a.sif.x1.part").mkdir(parents=True)
    write(out, layers[:1])
    facts = write(out, layers)
    assert sha256_file(out) == facts.sha256
    assert [path.name for path in out.parent.iterdir()] == ["a.sif"]


def test_a_failed_build_leaves_the_earlier_sif(tmp_path: Path, layers: list[Layer]) -> None:
    out = tmp_path / "out" / "a.sif"
    before = write(out, layers)
    layers[1].blob.chmod(0o644)
    os.truncate(layers[1].blob, layers[1].size // 2)
    with pytest.raises(BuildError, match="it is cut off"):
        write(out, layers)
    assert sha256_file(out) == before.sha256
    assert [path.name for path in out.parent.iterdir()] == ["a.sif"]


def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, layers: list[Layer]) -> None:
    (tmp_path / "thesis").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("thesis")
    for name in ("thesis", "folder", "link"):
        with pytest.raises(UsageError, match="is not a SIF"):
            write(tmp_path / name, layers)
    assert (tmp_path / "thesis").read_text() == "x"


def _patched(at: int, data: bytes) -> Callable[[Path], None]:
    def patch(path: Path) -> None:
        with path.open("r+b") as stream:
            stream.seek(at)
            stream.write(data)

    return patch


def _cut(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size if size >= 0 else path.stat().st_size + size)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_cut(0), "is empty, expected a header of 128 bytes"),
        (_cut(1), "is cut off: the header has 128 bytes, the file 1"),
        (_cut(100), "is cut off: the header has 128 bytes, the file 100"),
        (_cut(128), "is cut off: the table of 48 descriptors ends at byte 32176, the file at 128"),
        (_cut(5000), "is cut off: the table of 48 descriptors ends at byte 32176, the file at 5000"),
        (_cut(32176), r"is cut off: object 1 ends at byte \d+, the file at 32176"),
        (_cut(-1), r"is cut off: object \d ends at byte \d+, the file at \d+"),
        (lambda path: path.write_text("words " * 40), r"is not a SIF: it begins with b'words words'"),
        (_patched(32, b"GIF"), "is not a SIF: it begins with"),
        (_patched(42, b"02"), "a SIF of version '02', expected '01'"),
        (
            _patched(80, struct.pack("<3q", 0, 1 << 40, 4096)),
            "is damaged: it claims 1099511627776 descriptors",
        ),
        (_patched(96, struct.pack("<q", -1)), "is damaged: .* at byte -1"),
        (_patched(4096, bytes(585 * 3)), "is damaged: no object of it is a squashfs to start from"),
        (_patched(4096, struct.pack("<i", 99)), "is damaged: object 1 has the unknown type 99"),
        (_patched(4096 + 17, struct.pack("<q", -5)), "is damaged: object 1 begins at byte -5"),
    ],
)
def test_a_damaged_sif_is_told_in_words(
    tmp_path: Path, whole: Path, damage: Callable[[Path], object], words: str
) -> None:
    shutil.copy(whole, tmp_path / "a.sif")
    damage(tmp_path / "a.sif")
    with pytest.raises(VerifyError, match=words) as caught:
        read_sif(tmp_path / "a.sif")
    assert str(caught.value).startswith(f"`{tmp_path}/a.sif` is ")
    assert "again" in caught.value.hint


def test_a_sif_says_its_processor(tmp_path: Path, whole: Path) -> None:
    path = shutil.copy(whole, tmp_path / "a.sif")
    assert processor_in(path) is X86_64
    _patched(45, b"04")(path)
    assert processor_in(path) is AARCH64
    _patched(45, b"05")(path)  # of 64-bit PowerPC
    assert processor_in(path) is None
    path.write_text("no SIF")
    assert processor_in(path) is processor_in(tmp_path / "none.sif") is None


@pytest.mark.parametrize("size", [*range(0, 140, 7), *range(4000, 33000, 999)])
def test_a_sif_cut_anywhere_in_its_tables_is_told_in_words(tmp_path: Path, whole: Path, size: int) -> None:
    (tmp_path / "a.sif").write_bytes(whole.read_bytes()[:size])
    with pytest.raises(VerifyError, match=r"is cut off: |is empty"):
        read_sif(tmp_path / "a.sif")


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 99999, b"[1]"])
def test_labels_that_are_no_json_are_none_and_no_damage(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "tree" / LABELS).parent.mkdir(parents=True)
    (tmp_path / "tree" / LABELS).write_bytes(text)
    write(tmp_path / "a.sif", [write_layer(name="a", tree=tmp_path / "tree", folder=tmp_path / "a", epoch=EPOCH, threads=1)])  # fmt: skip
    assert read_labels(tmp_path / "a.sif") == {}


def test_too_little_memory_is_no_damage(whole: Path) -> None:
    with pytest.raises(MemoryError), opened_sif(whole):
        raise MemoryError


@pytest.mark.skipif(shutil.which("apptainer") is None, reason="apptainer is not installed")
def test_apptainer_reads_the_sif(tmp_path: Path, layers: list[Layer]) -> None:
    facts = write(tmp_path / "a.sif", layers)
    sif = read_sif(tmp_path / "a.sif")
    runner = ProcessRunner(os.environ)
    listed = runner.run(Command(argv=("apptainer", "sif", "list", str(tmp_path / "a.sif")), why="list"))
    assert f"{sif.system.offset}-{facts.size} " in listed
    assert "FS (Squashfs/*System/amd64)" in listed
    header = runner.run(Command(argv=("apptainer", "sif", "header", str(tmp_path / "a.sif")), why="read"))
    assert str(identity(tmp_path / "a.sif")) in header
    assert "#!/usr/bin/env run-singularity" in header


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("module",), 7),
        (("launch", "slurm", "--smoke"), 7),
        (("launch", "local", "--smoke"), 7),
        (("show", "--sbom"), 7),
    ],
    ids=lambda words: words if isinstance(words, int) else " ".join(words),
)
def test_a_sif_of_somebody_else_is_said_to_be_one(
    tmp_path: Path, whole: Path, words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(whole, tmp_path / "theirs.sif")
    assert cli.run([*words, str(tmp_path / "theirs.sif")]) == code
    told = capsys.readouterr().err
    assert f"`{tmp_path}/theirs.sif` " in told
    assert "was not made by envbuilder" in told or "envbuilder did not make it" in told


def test_one_more_layer_is_written_beside_what_is_copied(tmp_path: Path, layers: list[Layer]) -> None:
    base = tmp_path / "base"
    (base / "data").mkdir(parents=True)
    (base / "data/random").write_bytes(random.Random(0).randbytes(600_000))  # which no frame makes smaller
    (base / "data/noise").write_bytes(random.Random(1).randbytes(3000))
    layers.append(write_layer(name="data", tree=base, folder=tmp_path / "base-layer", epoch=EPOCH, threads=1))
    write(tmp_path / "a.sif", layers)
    tree = tmp_path / "more"
    (tree / "os").mkdir(parents=True)
    (tree / "os/small").write_text("another")
    (tree / "os/new").write_bytes(random.Random(2).randbytes(900_000))
    more = write_layer(name="more", tree=tree, folder=tmp_path / "more-layer", epoch=EPOCH, threads=1)
    facts = [extend_sif(tmp_path / "a.sif", more, tmp_path / name, labels={"with": "more"}) for name in "bc"]
    assert facts[0] == facts[1]
    assert identity(tmp_path / "b") != identity(tmp_path / "a.sif")
    with opened_sif(tmp_path / "a.sif") as system:
        before = {entry.path: entry for entry in system.entries(threads=1)}
    with opened_sif(tmp_path / "b") as system:
        after = {entry.path: entry for entry in system.entries(threads=1)}
        assert system.open("os/small").read() == b"another"
        assert system.open("os/new").read() == (tree / "os/new").read_bytes()
        assert system.open("data/random").read() == (base / "data/random").read_bytes()
        assert system.open("data/noise").read() == (base / "data/noise").read_bytes()
    assert after.keys() - before.keys() == {"os/new"}
    assert [path for path, entry in before.items() if after[path] != entry] == ["os/small"]
    extend_sif(tmp_path / "b", more, tmp_path / "again", labels={})  # of one that was extended
    assert sha256_file(tmp_path / "a.sif") == write(tmp_path / "d.sif", layers).sha256
