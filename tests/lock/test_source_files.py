"""What an extension is built from: a project's own files, a git commit with its submodules, an sdist; and how a lock keeps it."""

import contextlib
import dataclasses
import os
import subprocess
import tarfile
import types
from pathlib import Path

import pytest

from envbuilder.compat.repositories import addresses
from envbuilder.core.cache import Store, sha256_file, sha256_text
from envbuilder.core.errors import FetchError, LockError, UsageError
from envbuilder.core.process import ProcessRunner
from envbuilder.lock.changes import check_fresh, diff_locks
from envbuilder.lock.file import lock_text, parse_lock
from envbuilder.lock.model import Artifact, LockedExtension, SourceFile
from envbuilder.lock.resolve.extensions import export_commit, lock_extensions, lock_warm, store_sources
from envbuilder.lock.source_files import own_files, reasons, source_digests
from envbuilder.plan.model import extension_lines
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.load import load
from envbuilder.recipe.warm import Warm
from envbuilder.sources import git as git_module
from envbuilder.sources.git import find_commit
from envbuilder.sources.http import reachable
from tests.support.plans import LOCK
from tests.support.serving import silent_server
from tests.support.source_files import make_means, make_recipe, write

runs_programs = pytest.mark.programs


# The files of `warm`


def test_the_code_that_warm_names_is_locked_and_a_change_of_it_is_noticed(tmp_path: Path):
    write(tmp_path, "warm.py", "ops/a.py", "ops/deep/b.py", "ops/data.bin", "ops/.git/c.py", "other.py")
    recipe = dataclasses.replace(make_recipe(tmp_path), warm=Warm(run="python warm.py", files=("ops",)))
    warm = lock_warm(recipe)
    assert warm is not None
    assert [file.path for file in warm.files] == ["ops/a.py", "ops/deep/b.py", "warm.py"]
    lock = dataclasses.replace(LOCK, extensions=(), warm=warm, recipe=recipe.digest)
    assert parse_lock(lock_text(lock), "x.lock").warm == warm
    assert check_fresh(recipe, lock, source_digests(own_files(recipe))) == ()
    (tmp_path / "ops/a.py").write_text("changed")
    stale = check_fresh(recipe, lock, source_digests(own_files(recipe)), lambda: reasons(recipe, lock))
    assert stale == ("`ops/a.py` changed: `warm` names it",)
    new = dataclasses.replace(lock, warm=lock_warm(recipe))
    assert [change.name for change in diff_locks(lock, new)] == ["warm: ops/a.py"]
    gone = diff_locks(new, dataclasses.replace(lock, warm=None))
    assert str(gone[0]) == "- warm python warm.py"


def test_what_a_job_compiled_is_locked_and_compared_as_a_whole(tmp_path: Path):
    files = ("inductor/c/ab/x.so", "numba/f.nbi", "triton/K/k.cubin")
    rest = ("inductor/c/locks/x.lock", "inductor/c/ab/.1.tmp", "numba/f.nbi.tmp.1", "notes.txt")
    write(tmp_path, *(f"warm/h200/{name}" for name in (*files, *rest)))
    recipe = dataclasses.replace(make_recipe(tmp_path), warm=Warm(caches=("warm/h200",)))
    warm = lock_warm(recipe)
    assert warm is not None
    assert [file.path for file in warm.files] == [f"warm/h200/{name}" for name in files]
    lock = dataclasses.replace(LOCK, extensions=(), warm=warm, recipe=recipe.digest)
    assert parse_lock(lock_text(lock), "x.lock").warm == warm
    assert check_fresh(recipe, lock, source_digests(own_files(recipe))) == ()
    write(tmp_path, "warm/h200/triton/L/k.cubin", "warm/h200/triton/M/k.cubin")
    stale = check_fresh(recipe, lock, source_digests(own_files(recipe)), lambda: reasons(recipe, lock))
    assert stale == ("`warm/h200` changed",)
    new = dataclasses.replace(lock, warm=lock_warm(recipe))
    assert [change.name for change in diff_locks(lock, new)] == ["warm: warm/h200"]


# A project's own files


def test_a_projects_files_are_locked_without_what_a_build_left(tmp_path: Path):
    write(
        tmp_path, "dw/setup.py", "dw/csrc/a.cu", "dw/dw/data.bin", "dw/build/lib/x.py", "dw/dist/dw.tar.gz", "dw/dw.egg-info/PKG",
        "dw/dw/__pycache__/x.pyc", "dw/dw/core.so", "dw/.git/config", "dw/dw/build/kept.py", "other/b.cu",
    )  # fmt: skip
    (files,) = own_files(make_recipe(tmp_path, Extension(name="dw", path="dw"))).values()
    assert [file.path for file in files] == [
        "dw/csrc/a.cu",
        "dw/dw/build/kept.py",
        "dw/dw/data.bin",
        "dw/setup.py",
    ]


def test_of_a_captured_project_code_is_locked_and_data_is_not(tmp_path: Path):
    write(
        tmp_path,
        "net/ops/__init__.py",
        "net/ops/a.cu",
        "net/ops/a.cuh",
        "net/ops/config.yaml",
        "net/results.yaml",
        "net/weights.pth",
        "net/x.png",
    )
    extension = Extension(name="ops", path="net", capture=("import ops",))
    (files,) = own_files(make_recipe(tmp_path, extension)).values()
    assert [Path(file.path).name for file in files] == ["__init__.py", "a.cu", "a.cuh", "config.yaml"]


# A commit


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "protocol.file.allow=always")
    return subprocess.run(
        ["git", "-C", folder, *identity, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """URL and first commit of a repository with a submodule, an executable and a link; a second commit follows."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text("[protocol.file]\nallow = always\n")
    for name in ("glm", "project"):
        (tmp_path / name).mkdir()
        git(tmp_path / name, "init", "--quiet")
    write(tmp_path, "glm/glm.hpp", "project/csrc/a.cu", "project/build.sh")
    (tmp_path / "project/build.sh").chmod(0o755)
    (tmp_path / "project/link").symlink_to("csrc/a.cu")
    git(tmp_path / "glm", "add", "."), git(tmp_path / "glm", "commit", "-qm", "glm")
    git(tmp_path / "project", "submodule", "--quiet", "add", "--", str(tmp_path / "glm"), "third/glm")
    git(tmp_path / "project", "add", "."), git(tmp_path / "project", "commit", "-qm", "one")
    commit = git(tmp_path / "project", "rev-parse", "HEAD")
    write(tmp_path, "project/later.cu")
    git(tmp_path / "project", "add", "."), git(tmp_path / "project", "commit", "-qm", "two")
    return f"file://{tmp_path}/project", commit


def export(repository: tuple[str, str], cache: Path) -> tuple[Artifact, Store]:
    store = Store(cache)
    return export_commit(*repository, store=store, runner=ProcessRunner(os.environ)), store


@runs_programs
def test_a_commit_is_exported_with_its_submodules_and_nothing_of_git(repository, tmp_path):
    artifact, store = export(repository, tmp_path / "cache")
    with tarfile.open(store.artifact(artifact.sha256)) as tar:
        members = {member.name: (member.mode, member.linkname) for member in tar}
    assert members == {
        ".gitmodules": (0o644, ""),
        "build.sh": (0o755, ""),
        "csrc/a.cu": (0o644, ""),
        "link": (0o777, "csrc/a.cu"),
        "third/glm/glm.hpp": (0o644, ""),
    }
    assert (artifact.kind, artifact.name, artifact.version) == ("git", "project", repository[1])


@runs_programs
def test_a_commit_is_the_same_bytes_each_time(repository, tmp_path):
    first, _ = export(repository, tmp_path / "one")
    second, _ = export(repository, tmp_path / "two")
    assert first == second


@runs_programs
def test_a_revision_of_a_repository_is_its_commit(repository, tmp_path):
    url, first = repository
    newest = git(tmp_path / "project", "rev-parse", "HEAD")
    git(tmp_path / "project", "tag", "-am", "one", "v1", first)
    runner = ProcessRunner(os.environ)
    commits = [find_commit(url, revision, runner) for revision in ("HEAD", "v1", first)]
    assert commits == [newest, first, first]
    with pytest.raises(UsageError, match="no branch or tag `v2`"):
        find_commit(url, "v2", runner)


@runs_programs
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("commit", "the repository `URL` has no commit 0000000000000000000000000000000000000000: fatal: "),
        ("repository", "the repository `URLx` cannot be read: fatal: "),
        ("submodule", "the submodules of `URL` at COMMIT cannot be fetched: fatal: "),
    ],
)
def test_a_source_that_git_cannot_fetch_is_named_with_its_place_in_the_recipe(
    repository, tmp_path, change, message
):
    url, commit = repository
    given = {
        "git": f"{url}x" if change == "repository" else url,
        "commit": "0" * 40 if change == "commit" else commit,
    }
    if change == "submodule":
        (tmp_path / "glm").rename(tmp_path / "moved")
    recipe = make_recipe(tmp_path, Extension(name="p", **given))
    recipe = dataclasses.replace(recipe, places=(("$.extensions[0]", "a.yaml:7:5"),))
    with pytest.raises(FetchError) as caught:
        lock_extensions(recipe, make_means(tmp_path, runner=ProcessRunner(os.environ)), old=None)
    (finding,) = caught.value.findings
    start = message.replace("URL", url).replace("COMMIT", commit)
    assert (caught.value.exit_code, finding.where) == (5, "a.yaml:7:5")
    assert finding.message.startswith(f"the sources of the extension `p`: {start}")
    assert "git ls-remote" in finding.hint
    assert "-C" not in finding.hint, "the folder is gone"


@runs_programs
def test_a_repository_that_never_answers_is_named_and_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(reachable, "SECONDS", 0.1)
    limit, seconds = git_module._PATIENCE
    monkeypatch.setattr(git_module, "_PATIENCE", (limit, (seconds[0], "1")))
    told = []

    def waiting(pending):
        told.extend(pending())
        return contextlib.nullcontext()

    means = dataclasses.replace(make_means(tmp_path, runner=ProcessRunner(os.environ)), waiting=waiting)
    with silent_server() as (place, _):
        extension = Extension(name="p", git=f"http://{place}/p", commit="a" * 40)
        with pytest.raises(
            FetchError, match=f"`p`: the repository `http://{place}/p` cannot be read: .*too slow"
        ):
            lock_extensions(make_recipe(tmp_path, extension), means, old=None)
    assert told == [f"http://{place}/p"]


@runs_programs
def test_a_repository_that_gives_other_files_than_were_locked_is_refused(repository, tmp_path):
    url, commit = repository
    means = make_means(tmp_path, runner=ProcessRunner(os.environ))
    extension = Extension(name="p", git=url, commit=commit)
    (locked,) = lock_extensions(make_recipe(tmp_path, extension), means, old=None)
    assert locked.archive is not None
    wrong = dataclasses.replace(
        locked, archive=dataclasses.replace(locked.archive, sha256=sha256_text("other"))
    )
    with pytest.raises(LockError, match="gives other files"):
        store_sources(make_recipe(tmp_path, extension), (wrong,), means)


def locked_commit(content: bytes, tmp_path: Path) -> LockedExtension:
    (tmp_path / "content").write_bytes(content)
    archive = Artifact(
        kind="git", name="p", version="a" * 40, sha256=sha256_file(tmp_path / "content"), size=len(content), source="git",
        path=f"{'a' * 40}.tar",
    )  # fmt: skip
    return LockedExtension(
        name="p", sources=(), include=(), cflags=(), cuda_cflags=(), files=(), git="https://h/p", commit="a" * 40, archive=archive
    )  # fmt: skip


def test_a_commit_that_was_vendored_needs_no_repository(tmp_path):
    locked = locked_commit(b"tree", tmp_path)
    (tmp_path / "files").mkdir()
    (tmp_path / f"files/{'a' * 40}.tar").write_bytes(b"tree")
    means = make_means(tmp_path, tmp_path / "files")
    store_sources(make_recipe(tmp_path), (locked,), means, offline=True)
    assert means.store.artifact(locked.archive.sha256).read_bytes() == b"tree"


def test_offline_a_commit_that_nobody_has_is_told_with_the_name_of_its_file(tmp_path):
    locked = locked_commit(b"tree", tmp_path)
    with pytest.raises(FetchError, match="this run is offline") as caught:
        store_sources(make_recipe(tmp_path), (locked,), make_means(tmp_path), offline=True)
    assert f"{'a' * 40}.tar" in caught.value.hint


def test_a_locked_commit_is_not_asked_for_again(tmp_path):
    extension = Extension(name="p", git="https://h/p", commit="a" * 40)
    old = locked_commit(b"tree", tmp_path)
    lock = type("Old", (), {"extensions": (old,)})()
    means = make_means(tmp_path)
    (new,) = lock_extensions(make_recipe(tmp_path, extension), means, old=lock)
    assert (new, means.runner.commands) == (old, [])


# A source distribution


def test_an_sdist_is_found_in_a_folder_and_hashed(tmp_path):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/torch_scatter-2.1.2.tar.gz").write_bytes(b"sdist")
    (tmp_path / "wheels/other-1.tar.gz").write_bytes(b"other")
    means = make_means(tmp_path, tmp_path / "wheels")
    extension = Extension(name="scatter", sdist="torch-scatter==2.1.2")
    (locked,) = lock_extensions(make_recipe(tmp_path, extension), means, old=None)
    assert locked.archive is not None
    assert locked.archive.path == "torch-scatter/torch_scatter-2.1.2.tar.gz"
    assert means.store.artifact(locked.archive.sha256).read_bytes() == b"sdist"


def test_an_archive_of_an_address_is_hashed_and_can_be_fetched_again(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files/knn-1.0.zip").write_bytes(b"archive")
    url, digest = (tmp_path / "files/knn-1.0.zip").as_uri(), sha256_text("archive")
    recipe = make_recipe(tmp_path, Extension(name="_knn", url=url, sha256=digest, path="ops"))
    (locked,) = lock_extensions(recipe, make_means(tmp_path), old=None)
    assert (locked.url, locked.sha256, locked.path, locked.archive.sha256) == (url, digest, "ops", digest)
    (again,) = lock_extensions(
        recipe, make_means(tmp_path / "none"), old=types.SimpleNamespace(extensions=(locked,))
    )
    assert again == locked  # without a request
    means = make_means(tmp_path / "other")
    means.fetcher.know(addresses(recipe, None))
    means.fetcher.fetch((locked.archive,))
    assert means.store.artifact(digest).read_bytes() == b"archive"
    for other, kind in (
        (dataclasses.replace(recipe.extensions[0], sha256="0" * 64), LockError),
        (dataclasses.replace(recipe.extensions[0], url=url.replace("1.0", "2.0")), FetchError),
    ):
        with pytest.raises(kind, match="knn"):
            lock_extensions(make_recipe(tmp_path, other), make_means(tmp_path), old=None)


def test_an_sdist_that_nobody_has_is_told(tmp_path):
    extension = Extension(name="scatter", sdist="torch-scatter==2.1.2")
    with pytest.raises(FetchError, match=r"source distribution of torch-scatter 2\.1\.2"):
        lock_extensions(make_recipe(tmp_path, extension), make_means(tmp_path), old=None)


# The plan


def test_each_thing_that_a_lock_says_of_an_extension_is_in_the_plan():
    plain = LockedExtension(name="x", sources=(), include=(), cflags=(), cuda_cflags=(), files=())
    archive = Artifact(
        kind="sdist", name="x", version="1", sha256=sha256_text("x"), size=1, source="pypi", path="x/x.tar.gz"
    )
    changes = [
        {"name": "y"}, {"sources": ("a.cu",)}, {"include": ("i",)}, {"cflags": ("-O3",)}, {"cuda_cflags": ("-O3",)}, {"path": "p"},
        {"capture": ("import x",)}, {"env": (("A", "1"),)}, {"archive": archive},
        {"files": (SourceFile(path="a.cu", sha256=sha256_text("a"), size=1),)},
    ]  # fmt: skip
    texts = {extension_lines(dataclasses.replace(plain, **change)) for change in ({}, *changes)}
    assert len(texts) == len(changes) + 1


def test_the_recipes_own_folder_is_locked_without_recipe_lock_and_data(tmp_path: Path):
    write(
        tmp_path, "x.yaml", "x.lock", "setup.py", "README.md", "LICENSE", "net/a.cu", "net/config.json", "net/w.pt", "data/a.npy",
    )  # fmt: skip
    recipe = dataclasses.replace(
        make_recipe(tmp_path, Extension(name="net", path=".")), files=(tmp_path / "x.yaml",)
    )
    (files,) = own_files(recipe).values()
    assert [file.path for file in files] == [
        "LICENSE",
        "README.md",
        "net/a.cu",
        "net/config.json",
        "setup.py",
    ]


def test_another_recipe_and_a_site_beside_a_project_leave_its_lock_as_it_is(tmp_path: Path):
    pins = 'base: debian/bookworm\npython: "3.11"\ngcc: "12"\npytorch: "2.13.0"\n'
    write(tmp_path, "setup.py", "net/sites/a.yaml", "sites/my-site.yaml")
    (tmp_path / "x.yaml").write_text(f"{pins}extensions: [{{name: net, path: .}}]\n")
    before = own_files(load(tmp_path / "x.yaml"))
    assert [file.path for file in before["net"]] == ["net/sites/a.yaml", "setup.py"]

    (tmp_path / "more.yaml").write_text("extends: x\npackages: [rich]\n")
    (tmp_path / "other.yaml").write_text(pins)
    assert own_files(load(tmp_path / "x.yaml")) == before
    assert own_files(load(tmp_path / "more.yaml")) == before
