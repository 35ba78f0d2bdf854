"""The sentences of `lock` on the command line, with a mirror, an index and an archive of all days that are folders."""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from envbuilder import cli
from envbuilder.core.cache import Store, sha256_bytes, sha256_file
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import Lock
from envbuilder.sources.names import Sources
from tests.support import package_sources
from tests.support.elves import library
from tests.support.package_sources import MOVED, SECURITY, write_index, write_wheel
from tests.support.serving import guarded

moved, patched, world = package_sources.moved, package_sources.patched, package_sources.world
pytestmark = pytest.mark.programs

RECIPE = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
libxcrypt: "4.4"
pytorch: "2.13.0"
packages: ["numpy>=2"]
apt: [git]
"""


@dataclass(frozen=True)
class Place:
    """A recipe with its lock, made where the world was as it is in `world`; `run` asks the world of `moved`."""

    path: Path
    run: Callable[..., tuple[int, str, str]]

    @property
    def file(self) -> Path:
        return self.path.with_suffix(".lock")

    @property
    def lock(self) -> Lock:
        return load_lock(self.file)

    def versions(self) -> dict[str, str]:
        return {one.name: one.version for one in (*self.lock.debs, *self.lock.wheels)}


def ask(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name these sources in the settings."""
    settings = {
        "DEBIAN_MIRROR": sources.debian[0],
        "DEBIAN_SECURITY": sources.security[0],
        "DEBIAN_KEYRING": str(sources.keyring),
        "DEBIAN_SNAPSHOT": sources.snapshot,
        "INDEX": sources.indexes[0],
        "FOLDERS": str(sources.folders[0]),
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"ENVBUILDER_{name}", value)


@pytest.fixture(scope="module")
def locked(world: Sources, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe, its lock and the cache of both, made where the world was as it is in `world`."""
    folder = tmp_path_factory.mktemp("locked")
    path = folder / "test.yaml"
    path.write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        use_cache(folder, patch)
        ask(world, patch)
        for words in (("lock", path), ("cache", "vendor", path, folder / "kept")):
            assert cli.run([str(word) for word in words]) == 0
    return folder


def use_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the cache in this folder, with the programs of this machine as the toolbox."""
    monkeypatch.setenv("ENVBUILDER_CACHE", str(folder / "cache"))
    monkeypatch.setattr("envbuilder.lock.resolve.context.make_toolbox", lambda *_: Path("/"))
    monkeypatch.setattr("envbuilder.builder.pipeline.toolbox_files", tuple)


@pytest.fixture
def place(
    tmp_path: Path,
    locked: Path,
    moved: Sources,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Place:
    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run([str(word) for word in words])
        return (code, *capsys.readouterr())

    shutil.copytree(locked, tmp_path, symlinks=True, dirs_exist_ok=True)
    use_cache(tmp_path, monkeypatch)
    ask(moved, monkeypatch)
    return Place(tmp_path / "test.yaml", run)


def test_a_lock_that_fits_its_recipe_is_left_alone_whatever_is_newer(place: Place):
    before = place.file.read_bytes()
    assert place.run("lock", place.path, "--check")[0] == 0
    assert place.run("lock", place.path)[0] == 0
    assert place.file.read_bytes() == before


def test_check_prints_what_an_edit_would_change_and_writes_nothing(place: Place):
    place.path.write_text(RECIPE.replace("[git]", "[git, unrelated]"))
    before = place.file.read_bytes()
    code, out, _ = place.run("lock", place.path, "--check")
    assert (code, place.file.read_bytes()) == (4, before)
    assert "+ unrelated 1" in out.splitlines()
    code, out, _ = place.run("lock", place.path, "--check", "--json")
    answer = json.loads(out)
    assert (code, answer["exit_code"]) == (4, 4)
    assert [one["code"] for one in answer["findings"] if one["severity"] == "error"] == ["EB400"]
    assert any("unrelated" in change for change in answer["data"]["changes"])


# The locks of two other tools, with numpy in a version and the sha256 of its file.
OTHERS = {
    "uv.lock": """\
version = 1
[[package]]
name = "mine"
version = "0"
source = {{ virtual = "." }}
dependencies = [{{ name = "numpy" }}]
[[package]]
name = "numpy"
version = "{version}"
source = {{ registry = "{index}" }}
wheels = [{{ url = "numpy.whl", hash = "sha256:{sha256}" }}]
""",
    "poetry.lock": """\
[[package]]
name = "numpy"
version = "{version}"
groups = ["main"]
files = [{{file = "numpy.whl", hash = "sha256:{sha256}"}}]
[metadata]
lock-version = "2.1"
""",
}


@pytest.mark.parametrize("name", OTHERS)
def test_check_says_when_the_lock_of_another_tool_has_moved_on(name: str, place: Place, world: Sources):
    files = Path(urlsplit(world.indexes[0]).path).parent
    old, new = (
        OTHERS[name].format(
            version=version,
            index=PYPI_SIMPLE_ENDPOINT,
            sha256=sha256_file(next(files.rglob(f"numpy-{version}-*.whl"))),
        )
        for version in ("2.2.0", "2.4.0")
    )
    other = place.path.with_name(name)
    other.write_text(old)
    place.path.write_text(RECIPE.replace('["numpy>=2"]', f"{{from: {name}}}"))
    assert place.run("lock", place.path)[0] == 0
    assert place.versions()["numpy"] == "2.2.0"
    assert place.run("lock", place.path, "--check")[:2] == (0, f"the lock of {place.path} is up to date\n")

    locked = place.file.read_bytes()
    other.write_text(f"{old}# a comment\n")  # which moves nothing, and stops no build
    code, out, err = place.run("lock", place.path, "--check")
    assert (code, out.count("\n"), out.startswith(f"~ {name} sha256:")) == (4, 1, True)
    assert "the lock would change in 1 place\n" in err
    assert place.run("build", place.path, "--dry-run")[0] == 0

    other.write_text(new)
    code, out, err = place.run("lock", place.path, "--check")
    _, moved_on, package = out.splitlines()
    assert (code, moved_on.startswith(f"~ {name} sha256:"), package) == (4, True, "~ numpy 2.2.0 → 2.4.0")
    assert "hint: the same command without `--check` changes it" in err
    code, _, err = place.run("build", place.path)
    assert (code, f"`{name}` moved on: ~ numpy 2.2.0 → 2.4.0" in err) == (4, True)
    assert place.file.read_bytes() == locked
    assert place.run("lock", place.path)[0] == 0
    assert place.versions()["numpy"] == "2.4.0"


@pytest.mark.parametrize(
    ("pattern", "do"),
    [
        ("names", lambda path: path.write_text("")),
        ("lists/*_bookworm_InRelease", lambda path: path.write_text("")),
        ("lists/*_Packages", lambda path: path.unlink()),
        ("sources.list", lambda path: path.write_text("deb [trusted=yes] file:///evil ./\n")),
        ("apt.conf", lambda path: path.write_text(path.read_text().replace('"false"', '"FALSE"'))),
    ],
)
def test_damaged_package_lists_are_named_and_read_again(
    place: Place, pattern: str, do: Callable[[Path], object]
):
    place.path.write_text(RECIPE.replace("[git]", "[git, unrelated]"))
    assert place.run("lock", place.path)[0] == 0
    before = place.file.read_bytes()
    (folder,) = (place.path.parent / "cache/apt").glob("*main*")
    stamp = (folder / "stamp").stat().st_mtime_ns
    place.file.unlink()
    assert "damaged" not in place.run("lock", place.path)[2]
    assert (folder / "stamp").stat().st_mtime_ns == stamp, "the lists are used as they are"
    victim = next(folder.glob(pattern))
    right = victim.read_bytes()
    do(victim)
    assert "has no package" not in place.run("check", place.path)[2]
    place.file.unlink()
    code, _, err = place.run("lock", place.path)
    assert (code, place.file.read_bytes(), victim.read_bytes()) == (0, before, right)
    how = "is gone" if pattern.endswith("Packages") else "differs"
    assert f"cache: apt/{folder.name} is damaged: `{victim.relative_to(folder)}` {how}; made again" in err


def test_an_upgrade_of_one_package_moves_it_alone(place: Place):
    before = place.versions()
    code, out, _ = place.run("lock", place.path, "--upgrade", "make")
    assert code == 0
    assert place.versions() == before | {"make": "4.4"}
    assert "4.3" in out
    assert "4.4" in out


def test_an_upgrade_of_all_takes_what_is_newest(place: Place):
    assert place.run("lock", place.path, "--upgrade")[0] == 0
    wanted = {name: MOVED[name][0] for name in place.versions() if name in MOVED}
    assert wanted.items() <= place.versions().items()
    assert len(wanted) > 10


def test_before_a_day_asks_the_archive_for_that_day(place: Place):
    """It has one day alone here, and `test_resolve` shows what comes from that."""
    before = place.file.read_bytes()
    code, _, err = place.run("lock", place.path, "--upgrade", "--before", "2001-02-03")
    assert code == 5
    assert "20010203T000000Z" in err
    assert "ENVBUILDER_DEBIAN_SNAPSHOT" in err
    assert place.file.read_bytes() == before


def test_an_upgrade_of_a_wheel_leaves_the_packages(place: Place, tmp_path: Path, world: Sources, monkeypatch):
    before = place.versions()
    newer = write_wheel(tmp_path / "files", "numpy", "2.9.0", tag="cp311-cp311-manylinux_2_28_x86_64")
    write_index(tmp_path / "newer", newer)
    monkeypatch.setenv("ENVBUILDER_INDEX", f"{world.indexes[0]} {(tmp_path / 'newer').as_uri()}/")
    assert place.run("lock", place.path)[0] == 0
    assert place.versions() == before
    assert place.run("lock", place.path, "--upgrade", "numpy")[0] == 0
    assert place.versions() == before | {"numpy": "2.9.0"}


def test_check_names_packages_that_the_suite_lacks_by_the_lists_of_a_lock(place: Place):
    place.path.write_text(RECIPE.replace("apt: [git]", "apt: [git, gti, libold1]"))
    code, out, _ = place.run("check", place.path, "--json")
    assert code == 0
    found = [one for one in json.loads(out)["findings"] if one["code"] == "EB413"]
    assert [(one["where"].rpartition("/")[2], one["hint"]) for one in found] == [
        ("test.yaml:7:12", "did you mean `git`?"),
        ("test.yaml:7:17", "did you mean `libold1t64`?"),
    ]
    assert "bookworm has no package `gti` (package lists read 2" in found[0]["message"]
    code, _, err = place.run("lock", place.path)
    assert code == 3
    assert "test.yaml:7:12: bookworm has no package `gti`" in err
    assert "test.yaml:7:17: bookworm has no package `libold1`" in err
    assert "hint: did you mean `git`? did you mean `libold1t64`?" in err


def test_check_says_that_it_has_no_lists_to_look_for_packages(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def looked() -> bool:
        checked = bool(json.loads(place.run("check", place.path, "--json")[1])["data"]["apt_checked"])
        assert ("the names under `apt` (" in place.run("check", place.path)[1]) is not checked
        return checked

    assert looked()
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "empty"))
    assert not looked()
    place.path.write_text(RECIPE.replace("apt: [git]", ""))
    assert looked()


def test_check_says_what_it_did_not_look_at(
    place: Place, patched: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def passed_over() -> list[str]:
        text, answer = place.run("check", place.path)[1], place.run("check", place.path, "--json")[1]
        lines = list(map(str, json.loads(answer)["data"]["not_checked"]))
        assert [line for line in text.splitlines() if line.startswith("not looked at: ")] == (
            [f"not looked at: {'; '.join(lines)}"] if lines else []
        )
        return lines

    assert place.run("lock", place.path)[0] == 0
    assert passed_over() == []  # its lists came with the lock
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "empty"))
    lines = passed_over()
    without = "security updates (without package lists of bookworm in the cache: `envbuilder lock "
    assert lines[0] == f"{without}{place.path} --upgrade --security` brings them)"
    assert lines[1].startswith("the names under `apt` (")
    place.path.with_suffix(".lock").unlink()
    assert passed_over()[0].startswith("security updates (without a lock: ")
    assert "whether the packages exist" in passed_over()[2]


def test_a_security_upgrade_is_told_by_check_and_taken_by_lock(place: Place, patched: Sources, monkeypatch):
    def lacking() -> list[str]:
        code, out, _ = place.run("check", place.path, "--json")
        assert code == 0
        answer = json.loads(out)
        codes = [one["code"] for one in answer["findings"]]
        assert codes == (["EB412"] if answer["data"]["security"]["updates"] else [])
        assert answer["data"]["security"]["published"] == "2023-06-10"  # as the archive's signed list says
        return [one.partition(" ")[0] for one in answer["data"]["security"]["updates"]]

    assert lacking() == []  # by the lists of the first lock
    ask(patched, monkeypatch)
    before = place.versions()
    words = ("lock", place.path, "--upgrade", "--security")
    code, out, _ = place.run(*words, "--check")
    assert (code, place.versions()) == (4, before)
    assert "~ git 1:2.39.5-0+deb12u2 → 1:2.39.5-0+deb12u3" in out.splitlines()
    assert lacking() == ["git", "libc6", "libc6-dev"]
    code, out, _ = place.run("check", place.path)
    assert "out since 2023-06-10 at the latest: git 1:2.39.5-0+deb12u2 → 1:2.39.5-0+deb12u3" in out + _
    assert place.run(*words)[0] == 0
    updates = {name: version for name, (version, _) in SECURITY.items() if name != "unrelated"}
    assert place.versions() == before | updates
    assert lacking() == []


def test_nothing_is_said_of_security_where_nothing_is_known(place: Place, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "empty"))
    code, out, _ = place.run("check", place.path, "--json")
    assert (code, json.loads(out)["data"]["security"]) == (0, None)


@pytest.mark.parametrize("words", [("--security",), ("--upgrade", "--security", "git")])
def test_a_security_upgrade_names_no_packages(place: Place, words: tuple[str, ...]):
    code, _, err = place.run("lock", place.path, *words)
    assert code == 2
    assert "--upgrade --security" in err


def test_what_the_recipe_decides_otherwise_is_said_where_it_matters(place: Place) -> None:
    (place.path.parent / "r.txt").write_text("numpy>=2\nfilelock\ntorch==2.6.0\n")
    place.path.write_text(RECIPE.replace('["numpy>=2"]', "[{requirements: r.txt}]"))
    for name, is_said in (("first", True), ("again", False)):
        code, _, err = place.run("lock", place.path)
        assert (code, "the recipe's `pytorch: 2.13.0` at" in err) == (0, is_said), name


# a lock that was edited or merged


def edited(place: Place, *, debs: set[str] = frozenset(), wheels: set[str] = frozenset()) -> None:
    """Remove these entries of the lock."""
    body = json.loads(place.file.read_text())
    for part, names in (("debs", debs), ("wheels", wheels)):
        body[part] = [one for one in body[part] if one["name"] not in names]
    place.file.write_text(json.dumps(body, indent=1))


def test_lock_repairs_an_edited_lock_to_the_same_bytes(place: Place, world: Sources, monkeypatch):
    ask(world, monkeypatch)
    before = place.file.read_bytes()
    edited(place, debs={"libc6"}, wheels={"numpy"})
    code, out, err = place.run("lock", place.path)
    assert (code, place.file.read_bytes()) == (0, before)
    changed = ["+ libc6 2.36-9", f"+ numpy {place.versions()['numpy']}"]
    assert out.splitlines() == [*changed, f"$ envbuilder build {place.path}"]
    assert "was edited or merged after `lock` wrote it; that is repaired, and the rest is kept" in err
    assert "`libc6` 2.36-9 is gone from `debs`" in err


def test_lock_repairs_changed_values_to_the_same_bytes(place: Place, world: Sources, monkeypatch):
    ask(world, monkeypatch)
    before = place.file.read_bytes()
    body = json.loads(before)
    for number, part in enumerate(("debs", "wheels")):
        body[part][0]["sha256"] = f"{number}" * 64
    body["wheels"][1]["version"] = "999"
    body["debs"].reverse()
    place.file.write_text(json.dumps(body))
    assert place.run("lock", place.path)[0] == 0
    assert place.file.read_bytes() == before


def test_a_lost_package_that_moved_on_takes_with_it_what_it_needs_alone(place: Place):
    before = place.versions()
    edited(place, debs={"make"}, wheels={"numpy"})
    assert place.run("lock", place.path)[0] == 0
    assert place.versions() == before | {"make": MOVED["make"][0]}


def test_lock_repairs_and_upgrades_at_once(place: Place, patched: Sources, monkeypatch):
    ask(patched, monkeypatch)
    before = place.versions()
    edited(place, debs={"make"})
    assert place.run("lock", place.path, "--upgrade", "--security")[0] == 0
    updates = {name: version for name, (version, _) in SECURITY.items() if name in before}
    assert place.versions() == before | updates | {"make": "4.4"}


def test_a_lock_that_git_merged_keeps_the_versions_of_our_side(place: Place, world: Sources, monkeypatch):
    """Ours upgraded a .deb, theirs a wheel: git joins both, and only the seals meet."""
    folder = place.path.parent

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "merge.conflictStyle=merge")
        return subprocess.run(
            ["git", *settings, *words], cwd=folder, capture_output=True, text=True, check=False
        )

    git("init", "--quiet", "--initial-branch", "ours")
    git("add", "test.yaml", "test.lock")
    git("commit", "--quiet", "--message", "base")
    git("checkout", "--quiet", "-b", "theirs")
    newer = write_wheel(folder / "files", "numpy", "2.9.0", tag="cp311-cp311-manylinux_2_28_x86_64")
    write_index(folder / "newer", newer)
    monkeypatch.setenv("ENVBUILDER_INDEX", f"{world.indexes[0]} {(folder / 'newer').as_uri()}/")
    assert place.run("lock", place.path, "--upgrade", "numpy")[0] == 0
    git("commit", "--quiet", "--all", "--message", "theirs")
    git("checkout", "--quiet", "ours")
    assert place.run("lock", place.path, "--upgrade", "make")[0] == 0
    git("commit", "--quiet", "--all", "--message", "ours")
    ours = place.versions()
    assert git("merge", "theirs").returncode == 1
    code, _, err = place.run("check", place.path)
    assert (code, "holds merge markers at line" in err) == (4, True)
    assert f"git checkout --ours {place.file}" in err
    merged = place.file.read_bytes()
    git("checkout", "--ours", str(place.file))
    assert (place.run("check", place.path)[0], place.versions()) == (0, ours)
    place.file.write_bytes(merged)
    assert place.run("lock", place.path)[0] == 0
    assert place.run("check", place.path)[0] == 0
    assert {name: version for name, version in place.versions().items() if name != "numpy"} == {
        name: version for name, version in ours.items() if name != "numpy"
    }


def test_an_upgrade_replaces_a_lock_that_nothing_can_be_read_of(place: Place):
    place.file.write_text(place.file.read_text()[:3000])
    code, _, err = place.run("lock", place.path)
    assert (code, "--upgrade` chooses every version anew" in err) == (4, True)
    assert place.run("lock", place.path, "--upgrade")[0] == 0
    assert place.versions()["make"] == "4.4"


def test_add_of_a_package_that_no_index_has_leaves_recipe_and_lock_as_they_were(place: Place):
    before = place.path.read_bytes(), place.file.read_bytes()
    code, _, err = place.run("add", place.path, "nowhere>=1", "--no-load")
    assert (code, "no package index knows `nowhere`" in err) == (3, True)
    assert (place.path.read_bytes(), place.file.read_bytes()) == before


def test_add_removes_the_lock_of_a_recipe_that_had_none_and_cannot_be_built(place: Place):
    """The packages of this world are no .debs, so a build fails after the lock is made."""
    place.file.unlink()
    place.path.chmod(0o640)
    before = place.path.read_bytes()
    code, _, err = place.run(
        "add", place.path, "filelock", "--no-load", "--output", place.path.parent / "out"
    )
    assert (code, "filelock" in err) == (6, False), err
    assert (place.path.read_bytes(), place.path.stat().st_mode & 0o777) == (before, 0o640)
    assert not place.file.exists()


def test_a_wheel_that_cannot_load_leaves_the_lock_as_it_was(
    place: Place, moved: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    module, tag = library(needed=("libcudart.so.12",)), "cp311-cp311-manylinux_2_17_x86_64"
    write_wheel(tmp_path / "more", "view", "1", tag=tag, files={"view.abi3.so": module}, requires=("torch",))
    monkeypatch.setenv("ENVBUILDER_FOLDERS", f"{moved.folders[0]}:{tmp_path / 'more'}")
    place.path.write_text(RECIPE.replace('"numpy>=2"', '"numpy>=2", view'))
    before = place.file.read_bytes()
    code, _, err = place.run("lock", place.path)
    assert (code, place.file.read_bytes()) == (3, before)
    assert "fetch view 1 (0 MB) to judge what is compiled" in err
    assert (
        f"view-1-{tag}.whl: view.abi3.so: `import view` fails: needs `libcudart.so.12`, and the environment has no CUDA"
        in " ".join(err.split())
    )


def test_lock_warns_of_a_name_that_alone_brings_code_for_the_cpu(place: Place):
    text = RECIPE.replace('"numpy>=2"', "spconv").replace("2.13.0", "2.6.0")
    place.path.write_text(f'{text}gpus: [A100]\ncuda: "12.4"\n')
    _, _, err = place.run("lock", place.path)  # the toolkit is nowhere here
    words = " ".join(err.split())
    assert (
        "test.yaml:6:12: $.packages[0]: `spconv` on the package index has code for the CPU alone (" in words
    )
    assert "; `spconv-cu120`, " in words


def test_check_refuses_a_lock_whose_wheel_cannot_load(
    place: Place, moved: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tag = "cp311-cp311-manylinux_2_17_x86_64"
    monkeypatch.setenv("ENVBUILDER_FOLDERS", f"{moved.folders[0]}:{tmp_path / 'more'}")
    write_wheel(
        tmp_path / "more", "view", "1", tag=tag, files={"view.abi3.so": library()}, requires=("torch",)
    )
    place.path.write_text(RECIPE.replace('"numpy>=2"', '"numpy>=2", view'))
    assert place.run("lock", place.path)[0] == 0
    assert place.run("check", place.path)[0] == 0
    # A lock with a wheel that nobody judged
    module = library(needed=("libcudart.so.12",))
    bad = write_wheel(tmp_path, "view", "1", tag=tag, files={"view.abi3.so": module}, requires=("torch",))
    digest, size = sha256_bytes(bad.read_bytes()), bad.stat().st_size
    wheels = (
        replace(one, sha256=digest, size=size) if one.name == "view" else one for one in place.lock.wheels
    )
    place.file.write_text(lock_text(replace(place.lock, wheels=tuple(wheels))))
    code, out, _ = place.run("check", place.path)
    assert code == 0
    assert f"what is compiled in `view` (not in the cache; `envbuilder build {place.path}` fetches it)" in out
    Store(tmp_path / "cache").add_artifact(digest, bad)
    for _ in range(2):  # the verdict is kept
        code, out, _ = place.run("check", place.path, "--json")
        answer = json.loads(out)
        (finding,) = (one for one in answer["findings"] if one["severity"] == "error" and one["where"])
        assert (code, answer["data"]["not_checked"]) == (3, [])
        assert finding["where"] == f"view-1-{tag}.whl: view.abi3.so"
        assert finding["message"] == (
            "`import view` fails: needs `libcudart.so.12`, and the environment has no CUDA"
        )


PRIVATE = {
    "an index": ("[core]", "indexes: [{name: corp, url: URL/index, packages: [core]}]\n"),
    "a page": ("[knn]", "indexes: [{name: page, find_links: URL/page.html, packages: [knn]}]\n"),
    "an address": ("['fast @ URL/files/fast-1-py3-none-any.whl']", ""),
}
PASSWORD = "tr0ub4dor-and-3-horses"
PLANTED = (PASSWORD.encode(), base64.b64encode(f"reader:{PASSWORD}".encode()))


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index, a page and a file that one user may read."""
    web = tmp_path_factory.mktemp("private")
    write_index(web / "index", write_wheel(web / "files", "core", "1"))
    for name in ("knn", "fast"):
        write_wheel(web / "files", name, "1")
    (web / "page.html").write_text('<a href="files/knn-1-py3-none-any.whl">knn</a>')
    with guarded(web, PLANTED[1]) as url:
        yield url.rstrip("/")


def log_in(
    place: Place, private: str, password: str, monkeypatch: pytest.MonkeyPatch, *, by_home: bool = True
) -> None:
    home = place.path.parent / "home"
    home.mkdir()
    monkeypatch.delenv("NETRC", raising=False)
    host = private.partition("//")[2].partition(":")[0]
    (home / ".netrc").write_text(f"machine {host} login reader password {password}\n")
    (home / ".netrc").chmod(0o600)
    if by_home:
        monkeypatch.setenv("HOME", str(home))
    else:
        monkeypatch.setenv("NETRC", str(home / ".netrc"))


@pytest.mark.parametrize("case", PRIVATE)
def test_a_login_of_netrc_opens_the_recipes_own_sources_and_is_kept_nowhere(
    place: Place, private: str, case: str, monkeypatch: pytest.MonkeyPatch
):
    log_in(place, private, PASSWORD, monkeypatch, by_home=case != "an index")
    packages, more = (text.replace("URL", private) for text in PRIVATE[case])
    place.path.write_text(RECIPE.replace('["numpy>=2"]', packages) + more)
    code, out, err = place.run("lock", place.path, "-vv")
    assert code == 0, err
    name = {"an index": "core", "a page": "knn", "an address": "fast"}[case]
    (wheel,) = (wheel for wheel in place.lock.wheels if wheel.name == name)
    # A build on another machine fetches it with that machine's login.
    Store(place.path.parent / "cache").artifact(wheel.sha256).unlink(missing_ok=True)
    code, vendored, shown = place.run("cache", "vendor", place.path, place.path.parent / "vendored", "-vv")
    assert code == 0, shown
    printed = f"{out}{err}{vendored}{shown}".encode()
    assert [secret for secret in PLANTED if secret in printed] == []
    files = (path for path in place.path.parent.rglob("*") if path.is_file() and path.name != ".netrc")
    assert [path for path in files if any(secret in path.read_bytes() for secret in PLANTED)] == []


@pytest.mark.parametrize("case", PRIVATE)
def test_a_login_that_is_refused_is_said_with_its_place(
    place: Place, private: str, case: str, monkeypatch: pytest.MonkeyPatch
):
    log_in(place, private, "wrong-password", monkeypatch)
    before = place.file.read_bytes()
    packages, more = (text.replace("URL", private) for text in PRIVATE[case])
    place.path.write_text(RECIPE.replace('["numpy>=2"]', packages) + more)
    code, out, _ = place.run("lock", place.path, "--json")
    assert (code, place.file.read_bytes()) == (5, before)
    (finding,) = (one for one in json.loads(out)["findings"] if one["severity"] == "error")
    assert f"{place.path}:{6 if case == 'an address' else 8}:" in finding["message"]
    assert "401" in finding["message"]
    assert "~/.netrc" in finding["hint"]
    assert "wrong-password" not in out


def test_check_says_which_packages_a_job_compiles(place: Place):
    def compiled(packages: str, more: str = "") -> list[str]:
        place.path.write_text(RECIPE.replace('["numpy>=2"]', packages) + more)
        (text, answer) = (place.run("check", place.path, *form)[1] for form in ((), ("--json",)))
        lines = list(map(str, json.loads(answer)["data"]["at_start"]))
        assert all(line in text.splitlines() for line in lines)
        return lines

    (line,) = compiled("[numba, deepspeed]", "extensions: [{name: ops, deepspeed: [cpu_adam]}]\n")
    assert line == (
        "`numba` is compiled by each process, when it first calls a function, "
        "into ~/.cache/numba (NUMBA_CACHE_DIR), for functions with `cache=True` alone; to have it before the job: "
        "`warm: {caches: [FOLDER]}`, with what a job compiled under ENVBUILDER_KEEP_COMPILED=FOLDER"
    )
    kept = place.path.parent / "kept/numba/ops/f.nbi"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert compiled("[numba]", "warm: {caches: [kept]}\n") == []
    assert compiled("[gsplat]") == [], "the lock has it compiled"
    (line,) = compiled("[deepspeed]")
    assert "op by op" in line
    assert "deepspeed: [fused_adam]" in line
    assert compiled("[flashinfer-python==0.7.4, flashinfer-jit-cache==0.7.4]") == []
    (line,) = compiled("[flashinfer-python==0.7.4]")
    assert (
        "packages: [flashinfer-cubin==0.7.4, flashinfer-jit-cache==0.7.4] with indexes: [{name: flashinfer,"
        in line
    )
