"""A pull of a SIF fetches what this machine lacks, whatever is wrong with what it has."""

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.artifacts import history
from envbuilder.artifacts.oci import naming
from envbuilder.artifacts.oci.model import describe, make_manifest
from envbuilder.artifacts.oci.naming import FORMS, Form
from envbuilder.artifacts.oci.reference import Reference
from envbuilder.artifacts.outputs import Outputs
from envbuilder.artifacts.parts import Assembly
from envbuilder.core.cache import held, sha256_file
from envbuilder.core.console import Console
from envbuilder.core.errors import RegistryError, UsageError
from envbuilder.layers.layer import find_blobs
from envbuilder.registry import assemble
from envbuilder.registry.client import Client
from envbuilder.registry.pull import Pulled, pull
from envbuilder.registry.push import push
from envbuilder.sources.http import session as wire
from tests.support.registries import Fault, Proxy, Registry, faulty, registry
from tests.support.runner import FakeRunner
from tests.support.toys import make_toy
from tests.support.workbench import ENVBUILDER, attempt

pytestmark = pytest.mark.programs
LAYERS = {"os": 600_000, "python": 400_000, "extensions": 30_000}  # half of the bytes of a file


@dataclass(frozen=True, kw_only=True)
class World:
    """A registry with an environment before and after the edit of an extension."""

    registry: Registry
    folder: Path
    old: Outputs
    new: Outputs

    @property
    def size(self) -> int:
        return self.new.sif.stat().st_size


def text(seed: str, half: int) -> bytes:
    """Bytes that compress to half, as those of programs do."""
    return random.Random(seed).randbytes(half).hex().encode()


def place(host: str, tag: str) -> Reference:
    return Reference(registry=host, repository="team/toy", tag=tag)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    contents = {name: text(name, half) for name, half in LAYERS.items()}
    old = make_toy(folder / "old", contents)
    new = make_toy(folder / "new", contents | {"extensions": text("edited", LAYERS["extensions"])})
    with registry(folder / "registry") as real:
        for tag, outputs in (("old", old), ("new", new)):
            push(
                outputs, place(real.host, tag), Client({"HOME": str(folder)}, FakeRunner()), forms=FORMS,
                memory=folder / "memory", console=Console(quiet=True),
            )  # fmt: skip
        push(
            new, place(real.host, "thin"), Client({"HOME": str(folder)}, FakeRunner()), forms=FORMS, thin=True,
            memory=folder / "memory", console=Console(quiet=True),
        )  # fmt: skip
        yield World(registry=real, folder=folder, old=old, new=new)


@pytest.fixture
def proxy(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr(wire, "PAUSES", (0.0, 0.0, 0.0))
    with faulty(world.registry) as one:
        yield one


def bring(
    proxy: Proxy, folder: Path, tag: str = "new", forms: tuple[Form, ...] = ("sif",),
    cached: Callable[[object], Mapping[str, Path]] = lambda _: {}, versions: int = 1,
) -> Pulled:  # fmt: skip
    return pull(
        place(proxy.host, tag), Client({"HOME": str(folder)}, FakeRunner()), outputs=Outputs(folder=folder, name="toy"),
        forms=forms, key=None, cached=cached, versions=versions, console=Console(quiet=True),
    )  # fmt: skip


def have_old(world: World, folder: Path, name: str = "toy.sif") -> Path:
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(world.old.sif, folder / name))


def is_new(world: World, folder: Path) -> bool:
    """Whether the new SIF is there to the byte, and nothing hidden was left."""
    left = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    return not left and sha256_file(folder / "toy.sif") == sha256_file(world.new.sif)


def test_after_an_edit_only_the_changed_parts_travel(world: World, proxy: Proxy, tmp_path: Path):
    have_old(world, tmp_path)
    done = bring(proxy, tmp_path)
    assert is_new(world, tmp_path)
    assert done.bytes < 0.15 * world.size
    assert done.bytes_here > 0.85 * world.size
    assert proxy.sent < 0.2 * world.size  # with manifests and the index
    proxy.sent = 0
    assert bring(proxy, tmp_path).bytes == 0


@pytest.mark.parametrize("source", ["another SIF", "the cache", "the image"])
def test_parts_come_from_whatever_this_machine_has(world: World, proxy: Proxy, tmp_path: Path, source: str):
    folders = list((world.folder / "old").glob("*-layer"))
    cached = (lambda digests: find_blobs(folders, digests)) if source == "the cache" else lambda _: {}
    if source == "another SIF":
        have_old(world, tmp_path, "other.sif")
    elif source == "the image":
        bring(proxy, tmp_path, "old", ("image",))
    done = bring(proxy, tmp_path, cached=cached)
    assert is_new(world, tmp_path)
    assert 0 < done.bytes < 0.15 * world.size


def test_the_sif_that_is_replaced_comes_first_and_the_registry_last(
    world: World, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each of the four has a third that no earlier one has."""
    content, used = world.old.sif.read_bytes(), list[str]()
    third = len(content) // 3
    (tmp_path / "toy.sif").write_bytes(content[:third])
    (tmp_path / "other.sif").write_bytes(content[: 2 * third])
    take, copy, fetch = Assembly.take, Assembly.copy, assemble.fetch_range

    def note(name: str, made: Assembly, work: Callable[[], object]) -> None:
        before = made.lacks
        work()
        if made.lacks < before:
            used.append(name)

    monkeypatch.setattr(
        Assembly, "take", lambda made, path: note(Path(path).name, made, lambda: take(made, path))
    )
    monkeypatch.setattr(Assembly, "copy", lambda made, *more: note("cache", made, lambda: copy(made, *more)))
    monkeypatch.setattr(
        assemble, "fetch_range", lambda *words, **more: used.append("registry") or fetch(*words, **more)
    )
    folders = list((world.folder / "old").glob("*-layer"))
    bring(proxy, tmp_path, cached=lambda digests: find_blobs(folders, digests))
    assert is_new(world, tmp_path)
    assert list(dict.fromkeys(used)) == ["toy.sif", "other.sif", "cache", "registry"]


def test_a_version_that_was_kept_is_pulled_again_from_this_machine(
    world: World, proxy: Proxy, tmp_path: Path
):
    for tag in ("old", "new"):
        bring(proxy, tmp_path, tag, versions=2)
    assert [one.digest for one in history.versions(str(tmp_path / "toy.sif"))] == [
        sha256_file(one.sif)[: history.DIGITS] for one in (world.new, world.old)
    ]
    assert bring(proxy, tmp_path, "old", versions=2).bytes == 0
    assert sha256_file(tmp_path / "toy.sif") == sha256_file(world.old.sif)


def test_of_a_new_pair_each_byte_travels_once(world: World, proxy: Proxy, tmp_path: Path):
    done = bring(proxy, tmp_path, forms=FORMS)
    assert is_new(world, tmp_path)
    assert done.bytes < 1.15 * world.size


def test_with_nothing_here_the_sif_is_one_download(world: World, proxy: Proxy, tmp_path: Path):
    done = bring(proxy, tmp_path)
    assert is_new(world, tmp_path)
    assert (done.bytes, done.bytes_here) == (world.size, 0)
    assert len([path for method, path in proxy.asked if sha256_file(world.new.sif) in path]) == 1


# ------------------------------------------------------------------------------------------------------------- thin


def test_a_thin_push_sends_what_the_layers_lack_and_pull_makes_the_sif(world: World, tmp_path: Path):
    with faulty(world.registry) as proxy:
        edited = {name: text(name, half) for name, half in LAYERS.items()} | {
            "extensions": text("again", 20_000)
        }
        latest = make_toy(tmp_path / "made", edited)
        sent = push(
            latest, place(proxy.host, "latest"), Client({"HOME": str(tmp_path)}, FakeRunner()), forms=FORMS, thin=True,
            memory=tmp_path / "memory", console=Console(quiet=True),
        )  # fmt: skip
        assert sent.bytes_sent < 0.2 * world.size
        assert sent.sif_sha256 == sha256_file(latest.sif)
        have_old(world, tmp_path / "in")
        assert bring(proxy, tmp_path / "in", "latest").bytes < 0.2 * world.size
        assert sha256_file(tmp_path / "in/toy.sif") == sha256_file(latest.sif)


@pytest.mark.parametrize("here", ["nothing", "the image"])
def test_a_thin_push_of_bytes_that_do_not_compress_needs_the_layers_alone(
    world: World, tmp_path: Path, here: str
):
    """A SIF has them as they are, and a layer in frames."""
    dense = random.Random("dense").randbytes(6_000_000)
    made = make_toy(tmp_path / "made", {"python": text("head", 200_000) + dense + text("tail", 200_000)})
    with faulty(world.registry) as proxy:
        for form in FORMS:
            sent = push(
                made, place(proxy.host, "dense"), Client({"HOME": str(tmp_path)}, FakeRunner()), forms=(form,),
                thin=form == "sif", memory=tmp_path / "memory", console=Console(quiet=True),
            )  # fmt: skip
        assert sent.bytes_sent < 400_000
        if here == "the image":
            bring(proxy, tmp_path / "in", "dense", ("image",))
        done = bring(proxy, tmp_path / "in", "dense")
        assert (done.bytes < 400_000) == (here == "the image")
        assert sha256_file(tmp_path / "in/toy.sif") == sha256_file(made.sif)


@pytest.mark.parametrize("forms", [("sif",), FORMS])
def test_a_thin_sif_needs_no_older_one(world: World, proxy: Proxy, tmp_path: Path, forms: tuple[Form, ...]):
    done = bring(proxy, tmp_path, "thin", forms)
    assert is_new(world, tmp_path)
    assert done.bytes < 1.2 * world.size


def test_a_thin_sif_that_cannot_be_made_is_an_error(world: World, proxy: Proxy, tmp_path: Path):
    have_old(world, tmp_path)
    proxy.faults = [Fault(method="GET", path="/blobs/", flip=True, after=1)]
    with pytest.raises(RegistryError, match="do not make its SIF"):
        bring(proxy, tmp_path, "thin")
    assert sha256_file(tmp_path / "toy.sif") == sha256_file(world.old.sif)


@pytest.mark.parametrize("marks", [{}, {"io.envbuilder.sif": "sha256:1", "io.envbuilder.sif.size": "-"}])
def test_a_thin_manifest_that_names_no_sif_is_refused(marks: dict[str, str]):
    blobs = [describe(b"", kind) for kind in (naming.SIF_CONFIG, naming.PARTS_TYPE, naming.REST_TYPE)]
    manifest = make_manifest(config=blobs[0], layers=blobs[1:], annotations=marks)
    assert naming.is_sif(manifest)
    with pytest.raises(RegistryError, match="does not say which SIF"):
        naming.sif_of(manifest)


# ------------------------------------------------------------------------------------------------------------ faults


def spoil(path: Path, at: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


@pytest.mark.parametrize("at", [0.0, 0.05, 0.3, 0.5, 0.7, 0.99])
def test_a_damaged_old_sif_only_costs_bytes(world: World, proxy: Proxy, tmp_path: Path, at: float):
    spoil(have_old(world, tmp_path), at)
    done = bring(proxy, tmp_path)
    assert is_new(world, tmp_path)
    assert done.bytes < 0.5 * world.size


@pytest.mark.parametrize("content", [b"", b"no SIF at all", bytes(5_000_000)])
def test_an_old_file_that_is_no_sif_gives_nothing(world: World, proxy: Proxy, tmp_path: Path, content: bytes):
    (tmp_path / "toy.sif").write_bytes(content)
    (tmp_path / "dangling.sif").symlink_to("nowhere")
    (tmp_path / "folder.sif").mkdir()
    assert bring(proxy, tmp_path).bytes == world.size
    assert is_new(world, tmp_path)


def test_a_damaged_layer_in_the_cache_is_fetched(world: World, proxy: Proxy, tmp_path: Path):
    folder = Path(shutil.copytree(world.folder / "old/python-layer", tmp_path / "python-layer"))
    spoil(folder / "layer.tar.zst", 0.5)
    folders = [folder, world.folder / "old/os-layer"]
    done = bring(proxy, tmp_path, cached=lambda digests: find_blobs(folders, digests))
    assert is_new(world, tmp_path)
    assert done.bytes < 0.7 * world.size


@pytest.mark.parametrize("cut", [0, 20_000])
def test_a_cut_connection_is_asked_again(world: World, proxy: Proxy, tmp_path: Path, cut: int):
    have_old(world, tmp_path)
    proxy.faults = [Fault(method="GET", path=sha256_file(world.new.sif), cut_answer=cut)] * 2
    bring(proxy, tmp_path)
    assert is_new(world, tmp_path)
    assert len(proxy.used) == 2


def test_after_a_break_the_next_pull_goes_on(
    world: World, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(assemble, "RANGE", 20_000)
    have_old(world, tmp_path)
    proxy.faults = [Fault(method="GET", path=sha256_file(world.new.sif), cut_answer=5000, after=2)] * 60
    with pytest.raises(RegistryError):
        bring(proxy, tmp_path)
    assert sha256_file(tmp_path / "toy.sif") == sha256_file(world.old.sif)
    assert proxy.used
    proxy.faults, first = [], proxy.sent
    proxy.sent = 0
    bring(proxy, tmp_path)
    assert is_new(world, tmp_path)
    assert proxy.sent < first + 0.1 * world.size


@pytest.mark.parametrize(
    "fault",
    [Fault(method="GET", path="SIF", no_range=True), Fault(method="GET", path="SIF", flip=True)],
    ids=["no ranges", "other bytes"],
)
def test_where_ranges_cannot_be_had_the_whole_file_is_fetched(
    world: World, proxy: Proxy, tmp_path: Path, fault: Fault, capsys: pytest.CaptureFixture[str]
):
    have_old(world, tmp_path)
    fault.path = sha256_file(world.new.sif)
    proxy.faults = [fault]
    done = pull(
        place(proxy.host, "new"), Client({"HOME": str(tmp_path)}, FakeRunner()),
        outputs=Outputs(folder=tmp_path, name="toy"), forms=("sif",), key=None, cached=lambda _: {}, console=Console(),
    )  # fmt: skip
    assert is_new(world, tmp_path)
    assert done.bytes >= world.size
    assert "could not be put together from its parts: the whole file is fetched" in capsys.readouterr().err


def test_without_an_index_the_whole_file_is_fetched(world: World, proxy: Proxy, tmp_path: Path):
    have_old(world, tmp_path)
    proxy.faults = [Fault(method="GET", path="/manifests/sha256-", status=404)]
    assert bring(proxy, tmp_path).bytes == world.size
    assert is_new(world, tmp_path)


def test_a_second_pull_leaves_the_folder_of_the_first_alone(world: World, proxy: Proxy, tmp_path: Path):
    have_old(world, tmp_path)
    folder = tmp_path / ".toy.pull"
    folder.mkdir()
    with held(folder, wait=False):
        with pytest.raises(UsageError, match="another pull"):
            bring(proxy, tmp_path)
        assert folder.is_dir()
    bring(proxy, tmp_path)
    assert is_new(world, tmp_path)


def test_jobs_that_run_from_the_old_sif_keep_it(world: World, proxy: Proxy, tmp_path: Path):
    old = have_old(world, tmp_path)
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(old.open("rb")) for _ in range(4)]
        heads = [job.read(1000 * number) for number, job in enumerate(jobs)]
        bring(proxy, tmp_path)
        read = [head + job.read() for head, job in zip(heads, jobs, strict=True)]
    assert set(read) == {world.old.sif.read_bytes()}


def pull_on_a_disk(world: World, folder: Path, size: int) -> tuple[int, str]:
    """Pull to a disk of so many bytes that has the old SIF; return the exit code and the sha256 of what is there then."""
    (folder / "disk").mkdir()
    script = (
        f"mount -t tmpfs -o size={size} none {folder}/disk && cp {world.old.sif} {folder}/disk/toy.sif && "
        f"'{ENVBUILDER}' pull --only sif {world.registry.host}/team/toy:new --output {folder}/disk; code=$?; "
        f"sha256sum {folder}/disk/toy.sif; exit $code"
    )
    ended = attempt("unshare", "--mount", "--", "sh", "-c", script, env={"HOME": str(folder)})
    return ended.returncode, ended.stdout.splitlines()[-1].split()[0]


@pytest.mark.builds
def test_a_full_disk_leaves_the_old_sif(world: World, tmp_path: Path):
    assert pull_on_a_disk(world, tmp_path, int(1.5 * world.size)) == (6, sha256_file(world.old.sif))


@pytest.mark.builds
def test_a_pull_needs_room_for_the_new_sif_and_what_is_missing(world: World, tmp_path: Path):
    assert pull_on_a_disk(world, tmp_path, int(2.2 * world.size)) == (0, sha256_file(world.new.sif))
