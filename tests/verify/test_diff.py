"""What `diff` says of two locks, trees and environments."""

import json
from dataclasses import replace

import pytest

from envbuilder.core.cache import Sha256, sha256_text
from envbuilder.layers.entry import Entry, Kind
from envbuilder.lock.model import Artifact, Inputs, Lock
from envbuilder.sources.installed import DPKG
from envbuilder.verify.diff import NCCL_FILE, RECIPE, Contents, compare, of_lock, of_tree, read_exports

ONE = sha256_text("one")
STATUS = """\
Package: libc6
Status: install ok installed
Version: 2.36-9

Package: gone
Status: deinstall ok config-files
Version: 1
"""


def artifact(name: str, version: str, kind: str = "wheel") -> Artifact:
    digest = sha256_text(f"{name} {version}")
    return Artifact(
        kind=kind, name=name, version=version, sha256=digest, size=2_000_000, source="pypi", path=f"{name}/x"
    )


def lock(*wheels: Artifact) -> Lock:
    inputs = Inputs(debs=Sha256("0" * 64), toolkit=Sha256("0" * 64), wheels=Sha256("0" * 64))
    return Lock(
        recipe=ONE, epoch=0, platform="linux/amd64", inputs=inputs, debs=(artifact("git", "2.39", "deb"),),
        toolkit=(), wheels=wheels, extensions=(),
    )  # fmt: skip


def file(path: str, text: str = "x", **changes: object) -> Entry:
    plain = Entry(
        path=path, kind=Kind.FILE, mode=0o644, uid=0, gid=0, mtime=7, size=len(text), sha256=sha256_text(text)
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def tree(
    *entries: Entry, environment: dict[str, str] | None = None, contents: dict[str, bytes] | None = None
) -> Contents:
    return of_tree("a", "image", entries, contents or {}, environment=environment or {})


def test_of_two_locks_the_packages_the_settings_and_the_sizes_are_told():
    one = of_lock(
        "a.lock", lock(artifact("numpy", "2.0"), artifact("old", "1")), environment={"A": "1"}, nccl="auto"
    )
    other = of_lock(
        "b.lock", lock(artifact("numpy", "2.1")), environment={"A": "1", "NCCL_DEBUG": "INFO"}, nccl="off"
    )
    found = compare(one, other)
    assert [str(change) for change in found.packages] == [
        f"~ python numpy 2.0 (wheel {sha256_text('numpy 2.0')[:12]}, 2.0 MB) → 2.1 (wheel {sha256_text('numpy 2.1')[:12]}, 2.0 MB)",
        f"- python old 1 (wheel {sha256_text('old 1')[:12]}, 2.0 MB)",
    ]
    assert [str(change) for change in found.environment] == ["+ NCCL_DEBUG INFO"]
    assert [str(change) for change in found.nccl] == ["+ NCCL_DEBUG INFO", "~ recipe auto → off"]
    assert (found.sizes.before, found.sizes.after) == (6_000_000, 4_000_000)
    assert found.files is None


def test_settings_of_a_lock_without_a_recipe_are_not_compared():
    known = of_lock("a.lock", lock(), environment={"NCCL_DEBUG": "INFO"}, nccl="off")
    found = compare(known, of_lock("old.lock", lock(), environment=None))
    assert (found.environment, found.nccl, found.without_recipe) == ((), (), ("old.lock",))
    assert (
        found.text().splitlines()[2] == "environment, NCCL: not compared, since no recipe is beside old.lock"
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sha256": sha256_text("y")}, f"~ /a/f 1 bytes {sha256_text('x')[:12]} 0644 → 1 bytes {sha256_text('y')[:12]} 0644"),
        ({"mode": 0o755}, "0644 → 1 bytes"),
        ({"uid": 3}, "0644 3:0"),
        ({"xattrs": (("user.a", b"b"),)}, "0644 user.a=62"),
        ({"kind": Kind.LINK, "target": "g", "size": 0, "sha256": ""}, "→ to g 0644"),
    ],
)  # fmt: skip
def test_a_file_that_differs_is_told_with_what_differs(change: dict[str, object], told: str):
    found = compare(tree(file("a/f")), tree(file("a/f", **change)))
    assert found.files is not None
    (line,) = map(str, found.files)
    assert told in line


def test_times_are_no_difference():
    found = compare(tree(file("a")), tree(file("a", mtime=99)))
    assert (found.files, found.sizes.before, found.sizes.after) == ((), 1, 1)
    assert found.text().splitlines()[1:] == [
        "packages: the same", "environment: the same", "NCCL: the same", "size 0.000 GB → 0.000 GB (+0.0 MB)", "files: the same",
    ]  # fmt: skip


def test_the_folders_that_grew_most_come_first():
    small, large = file("a/b/c/d/e/f/g/small", "xx"), file("opt/large", "x" * 100)
    found = compare(tree(file("gone/x", "x" * 10)), tree(small, large))
    assert list(found.sizes.folders.items()) == [("opt", 100), ("gone", -10), ("a/b/c/d/e/f", 2)]
    assert (found.sizes.before, found.sizes.after) == (10, 102)


def test_a_tree_without_a_lock_is_asked_what_it_holds():
    site = "opt/env/lib/python3.11/site-packages"
    held = tree(file(f"{site}/numpy-2.0.dist-info", kind=Kind.DIRECTORY), contents={DPKG: STATUS.encode()})
    assert held.packages == {"libc6": "2.36-9", "python numpy": "2.0"}


def test_settings_of_nccl_come_from_the_environment_its_file_and_the_recipe():
    contents = {NCCL_FILE: b"# site\nNCCL_IB_HCA=mlx5\n", RECIPE: json.dumps({"nccl": "auto"}).encode()}
    held = tree(environment={"TORCH_NCCL_BLOCKING_WAIT": "1", "PATH": "/bin"}, contents=contents)
    assert held.nccl == {"TORCH_NCCL_BLOCKING_WAIT": "1", "NCCL_IB_HCA": "mlx5", "recipe": "auto"}


def test_the_environment_of_a_sif_is_read_as_either_writes_it():
    text = """#!/bin/sh
export PATH="/usr/bin:/bin"
export FOO="${FOO:-"bar"}"
export HOME_=/root
export WORDS='a b'
export EMPTY=''
"""
    assert read_exports(text) == {
        "PATH": "/usr/bin:/bin", "FOO": "bar", "HOME_": "/root", "WORDS": "a b", "EMPTY": "",
    }  # fmt: skip


def test_long_lists_are_cut_in_the_text_and_whole_in_the_data():
    found = compare(tree(), tree(*(file(f"f{number}") for number in range(40))))
    assert "and 25 more" in found.text()
    assert found.files is not None
    assert len(found.files) == 40
