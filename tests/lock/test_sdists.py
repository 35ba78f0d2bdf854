"""Packages without a wheel are locked as source distributions, with what they are built with, as pip would choose them."""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from envbuilder.core.errors import IncompatibleError
from envbuilder.core.processor import X86_64
from envbuilder.lock.model import Artifact, LockedBuild
from envbuilder.lock.resolve.held import Choice, held_back
from envbuilder.lock.resolve.wheels import Packages, resolve_wheels
from envbuilder.sources.names import Sources
from tests.support.locks import make_artifact, make_means, make_recipe, make_task
from tests.support.package_sources import write_index, write_wheel
from tests.support.sdists import locked, own_backend, setup_only, write_sdist
from tests.support.serving import served

pytestmark = pytest.mark.programs

# In the place of setuptools: it runs a setup.py, and asks for `wheel` as its releases before 70.1 do.
SETUPTOOLS = {
    "setuptools/__init__.py": "given = {}\nsetup = given.update\nfind_packages = list\n",
    "setuptools/build_meta.py": """
import os, runpy, setuptools

class Legacy:
    def get_requires_for_build_wheel(self, settings=None):
        return ["wheel"]

    def prepare_metadata_for_build_wheel(self, folder, settings=None):
        import wheel
        runpy.run_path("setup.py")
        os.mkdir(folder + "/it.dist-info")
        with open(folder + "/it.dist-info/METADATA", "w") as out:
            out.write("Metadata-Version: 2.1\\n" + "".join("Requires-Dist: %s\\n" % one for one in setuptools.given["install_requires"]))
        return "it.dist-info"

__legacy__ = Legacy()
""",
}
Lock = Callable[..., Packages]


@pytest.fixture
def lock(tmp_path: Path) -> Lock:
    """Lock these packages, with torch and the given files in an index in a folder."""

    def lock_packages(
        packages: tuple[str, ...],
        *files: Path,
        folders: tuple[Path, ...] = (),
        torch: tuple[str, ...] = (),
        prefer: tuple[Artifact, ...] = (),
        builds: tuple[LockedBuild, ...] = (),
        index: str = "",
    ) -> Packages:
        base, there = tmp_path / "base", tmp_path / "there"
        write_wheel(base, "torch", "2.13.0+cpu", tag="cp311-cp311-manylinux_2_28_x86_64", requires=torch)
        own = [
            write_wheel(there, "setuptools", "80.0.0", files=SETUPTOOLS),
            write_wheel(there, "wheel", "0.45.0"),
            write_wheel(there, "numpy", "2.4"),
            write_wheel(there, "filelock", "3.0"),
        ]
        names = {file.name for file in files}
        write_index(tmp_path / "simple", *(one for one in own if one.name not in names), *files)
        sources = Sources(
            debian=(), indexes=(index or f"{(tmp_path / 'simple').as_uri()}/",), folders=(base, *folders)
        )
        recipe = make_recipe(tmp_path, packages=packages)
        means = make_means(tmp_path, sources)
        return resolve_wheels(make_task(recipe, means), prefer=prefer, builds=builds)

    return lock_packages


def named(found: Packages, name: str) -> Artifact:
    return next(one for one in found.artifacts if one.name == name)


def tools(found: Packages) -> dict[str, list[str]]:
    return {build.name: [one.name for one in build.wheels] for build in found.builds}


@pytest.mark.parametrize(
    ("files", "suffix", "built_with"),
    [
        (own_backend("plain", "1.0", requires=("filelock",)), ".tar.gz", {}),
        (own_backend("plain", "1.0", requires=("filelock",), needs='"wheel>=0.4"'), ".zip", {"plain": ["wheel"]}),
        (setup_only("plain", "1.0", requires=("filelock",)), ".tar.gz", {"plain": ["setuptools", "wheel"]}),
    ],
    ids=["own-backend", "zip", "setup-py"],
)  # fmt: skip
def test_a_package_is_locked_with_what_it_requires_and_is_built_with(
    tmp_path: Path, lock: Lock, files: dict[str, str], suffix: str, built_with: dict[str, list[str]]
) -> None:
    sdist = write_sdist(tmp_path / "files", "plain", "1.0", files, suffix)
    found = lock(("plain",), sdist)
    assert (named(found, "plain").kind, named(found, "plain").path) == ("sdist", f"plain/{sdist.name}")
    assert named(found, "filelock").kind == "wheel"
    assert tools(found) == built_with


# As flash-attn's: hundreds of lines of a traceback, whose last line says why.
DEEP = """
import os
def first(depth): second(depth - 1)
def second(depth):
    if depth > 0: first(depth)
    raise RuntimeError("FlashAttention is only supported on CUDA 11.7 and above.")
for name in range(200): print("compiling", name)
first(90)
"""


def test_a_setup_that_ends_in_an_exception_is_told_by_it_first(tmp_path: Path, lock: Lock) -> None:
    sdist = write_sdist(tmp_path / "files", "flash", "2.5.8", {"setup.py": DEEP})
    with pytest.raises(IncompatibleError) as caught:
        lock(("flash",), sdist)
    assert caught.value.message.splitlines() == [
        "RuntimeError: FlashAttention is only supported on CUDA 11.7 and above.",
        "  setup.py:6 ends so: `flash 2.5.8` has no wheel for this Python, and its source distribution cannot be built",
    ]
    assert "sdist: flash==2.5.8" in caught.value.hint


def test_a_known_way_to_compile_it_is_the_hint(tmp_path: Path, lock: Lock) -> None:
    sdist = write_sdist(tmp_path / "files", "minkowskiengine", "0.5.4", {"setup.py": DEEP})
    with pytest.raises(IncompatibleError) as caught:
        lock(("minkowskiengine",), sdist)
    assert (
        'sdist: MinkowskiEngine==0.5.4, options: ["--force_cuda", "--blas=openblas"]}]' in caught.value.hint
    )
    assert "apt: [libopenblas-dev]" in caught.value.hint


@pytest.mark.parametrize(("is_kept", "tool"), [(True, "0.44"), (False, "0.45.0")])
def test_what_builds_a_package_keeps_its_version_as_long_as_the_package(
    tmp_path: Path, lock: Lock, tool: str, *, is_kept: bool
) -> None:
    files = own_backend("plain", "1.0", needs='"wheel"')
    sdist = write_sdist(tmp_path / "files", "plain", "1.0", files)
    old_tool = make_artifact("wheel", "0.44")
    old = LockedBuild(name="plain", wheels=(old_tool,))
    prefer = (locked(sdist, "plain", "1.0"),) if is_kept else ()
    older = write_wheel(tmp_path / "older", "wheel", "0.44")
    found = lock(
        ("plain",),
        sdist,
        older,
        write_wheel(tmp_path / "newer", "wheel", "0.45.0"),
        prefer=prefer,
        builds=(old,),
    )
    assert [one.version for one in found.builds[0].wheels] == [tool]


def test_a_source_distribution_in_a_folder_serves_as_well(tmp_path: Path, lock: Lock) -> None:
    mine = tmp_path / "mine"
    write_sdist(mine, "plain", "1.0", own_backend("plain", "1.0", needs='"tool"'))
    write_wheel(mine, "tool", "1.0")
    found = lock(("plain",), folders=(mine,))
    assert (named(found, "plain").kind, tools(found)) == ("sdist", {"plain": ["tool"]})


def test_a_wheel_is_taken_where_the_version_has_one(tmp_path: Path, lock: Lock) -> None:
    files = tmp_path / "files"
    sdist = write_sdist(files, "plain", "1.0", own_backend("plain", "1.0"))
    assert named(lock(("plain",), sdist, write_wheel(files, "plain", "1.0")), "plain").kind == "wheel"


def test_a_dependency_without_a_wheel_holds_no_package_back(tmp_path: Path, lock: Lock) -> None:
    """Of wheels alone, the old release and the candidate could be installed."""
    files = tmp_path / "files"
    grammar = write_sdist(files, "grammar", "4.9", setup_only("grammar", "4.9"))
    releases = (
        write_wheel(files, "app", "0.11"),
        write_wheel(files, "app", "1.3", requires=("grammar==4.9",)),
        write_wheel(files, "app", "1.4.0rc1"),
    )
    found = lock(("app>=0.1",), grammar, *releases)
    assert (named(found, "app").version, named(found, "grammar").kind) == ("1.3", "sdist")


@pytest.mark.parametrize(
    ("wanted", "releases", "version"),
    [
        ("early", {"1.0rc1": ()}, "1.0rc1"),
        ("early>1.0", {"1.0": (), "1.1rc1": ()}, "1.1rc1"),
        ("early>=1.1rc1", {"1.0": (), "1.1rc1": ()}, "1.1rc1"),
        ("parent", {"1.0": (), "1.1rc1": ()}, "1.1rc1"),
        ("early", {"1.0": (), "1.1rc1": ()}, "1.0"),
        ("early", {"1.0": ("numpy<1",), "1.1rc1": ()}, ""),
        ("early>=1.1rc1", {"1.0": ("numpy<1",), "1.1rc1": ()}, "1.1rc1"),
        ("early>=0.5", {"0.1": (), "1.0": ("numpy<1",), "1.1rc1": ()}, ""),
    ],
    ids=[
        "no-release",
        "none-in-range",
        "asked-for",
        "asked-for-by-another",
        "release",
        "conflict",
        "advised",
        "conflict-in-range",
    ],
)
def test_a_pre_release_is_taken_only_where_pip_would(
    tmp_path: Path, lock: Lock, caplog: pytest.LogCaptureFixture, wanted: str, releases: dict[str, tuple[str, ...]], version: str
) -> None:  # fmt: skip
    files = tmp_path / "files"
    wheels = [write_wheel(files, "early", one, requires=needs) for one, needs in releases.items()]
    wheels += [
        write_wheel(files, "parent", "0.9"),  # wandb was older than the release that requires a candidate
        write_wheel(files, "parent", "1.0", requires=("early>=1.1rc1",)),
    ]
    if version:
        assert named(lock((wanted, "numpy>=2"), *wheels), "early").version == version
    else:
        with pytest.raises(IncompatibleError, match="early"):
            lock((wanted, "numpy>=2"), *wheels)
        said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        assert [one.rpartition("; ")[2] for one in said] == ["`early>=1.1rc1` in `packages` takes it"]


def test_a_version_that_no_index_has_is_answered_with_the_newest(tmp_path: Path, lock: Lock):
    files = tmp_path / "files"
    wheels = [write_wheel(files, "early", version) for version in ("1.0", "2.0", "3.0rc1")]
    with pytest.raises(IncompatibleError) as caught:
        lock(("early==2.9",), *wheels)
    assert caught.value.hint.startswith("the newest early for Python 3.11 is 2.0; ")


@pytest.mark.parametrize(
    ("packages", "hint"),
    [
        (
            ("server==0.8.5", "numpy>=2"),
            'server needs torch 2.6.0: write `pytorch: "2.6.0"`; ',
        ),
        (("client",), 'client needs torch 2.1.2: write `pytorch: "2.1.2"`; '),
        (("other",), "other needs torch 2.6.99, which does not go with the other pins; "),
        (("server",), "loosen a bound"),  # its releases need several
    ],
)
def test_the_torch_that_a_package_needs_is_named(
    tmp_path: Path, lock: Lock, packages: tuple[str, ...], hint: str
):
    needs = {
        ("server", "0.8.5"): "2.6.0",
        ("server", "0.9.0"): "2.7.0",
        ("client", "1.0"): "2.1.2",
        ("other", "1.0"): "2.6.99",
    }
    wheels = [
        write_wheel(tmp_path / "files", *release, requires=(f"torch=={torch}",))
        for release, torch in needs.items()
    ]
    with pytest.raises(IncompatibleError) as caught:
        lock(packages, *wheels)
    assert caught.value.hint.startswith(hint)


def test_an_index_whose_files_are_read_only_as_a_whole_has_pre_releases_too(tmp_path: Path, lock: Lock):
    files = tmp_path / "files"
    wheels = [write_wheel(files, "early", "1.0rc1"), write_wheel(files, "parent", "0.9")]
    wheels.append(write_wheel(files, "parent", "1.0", requires=("early",)))
    with served(tmp_path) as address:
        found = lock(("parent",), *wheels, index=f"{address}simple/")
    assert (named(found, "parent").version, named(found, "early").version) == ("1.0", "1.0rc1")


HELD = {
    "app": {"1.0": ("numpy<2.1",), "2.0": ("numpy>=2.1",)},
    "tool": {"0.5": (), "1.0": ("base<2",), "1.5": ("base<2",)},
    "base": {"1.0": (), "2.0": (), "2.1rc1": ()},
    "numpy": {"2.0": (), "2.4": ()},
    "filelock": {"2.0": (), "3.0": ()},
    "sympy": {"1.0": ("mpmath<2",)},
    "mpmath": {"1.0": (), "2.0": ()},
    "long": {"1.0": (), "2.0": ("link",)},
    "link": {"1.0": ("base>=2",)},
    "extra": {"1.0": ("filelock; extra == 'less'", "numpy<2.1; extra == 'more'")},
    "frame": {"1.0": (), "2.0": ("mpmath>=2",)},
}
TORCH = ("filelock<3", "sympy")  # what fits no other torch
FITTING = "older than the newest release, to fit torch 2.13.0+cpu"


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        (("tool",), {"base is 1.0, not 2.0: tool requires `base<2`"}),
        (("tool", "long"), {"base is 1.0, not 2.0: tool requires `base<2`",
                            "long is 1.0, not 2.0: `long>=2.0` in `packages` takes it"}),
        (("tool>=1", "long"), {"base is 1.0, not 2.0: tool requires `base<2`",
                               "long is 1.0, not 2.0: nothing newer fits all requirements"}),
        (("extra[more]",), {"numpy is 2.0, not 2.4: extra requires `numpy<2.1`"}),
        (("filelock",), {f"{FITTING}: filelock 2.0"}),
        (("frame",), {f"{FITTING}: frame 1.0"}),
        (("app", "numpy<2.1"), {"numpy is 2.0, not 2.4: the recipe requires `numpy<2.1`",
                                "app is 1.0, not 2.0: 2.0 requires `numpy>=2.1`, and numpy is 2.0"}),
        (("app", "base"), set()),
        (("app", "numpy==2.0"), {"app is 1.0, not 2.0: 2.0 requires `numpy>=2.1`, and numpy is 2.0"}),
    ],
    ids=["dependency", "another-is-older", "nothing-newer", "extra", "torch", "newest-does-not-fit-torch", "recipe", "newest", "pinned"],
)  # fmt: skip
def test_what_holds_a_package_back_is_said(
    tmp_path: Path, lock: Lock, caplog: pytest.LogCaptureFixture, packages: tuple[str, ...], said: set[str]
) -> None:
    files = tmp_path / "files"
    wheels = [
        write_wheel(files, name, version, requires=needs)
        for name, releases in HELD.items()
        for version, needs in releases.items()
    ]
    with caplog.at_level(logging.WARNING):
        lock(packages, *wheels, torch=TORCH)
    assert set(caplog.messages) == said


def test_torch_is_named_before_a_package_that_could_be_another_one() -> None:
    there = {
        name: make_artifact(name, version)
        for name, version in (("app", "1.0"), ("lib", "5.0"), ("torch", "2.6.0"))
    }
    choice = Choice(
        python="3.11", processor=X86_64, packages=there, extensions={}, parents={"torch": ["app"], "lib": ["app"]}, extras={},
        asked=(), fixed=(), requires=lambda _: (Requirement("lib<5"), Requirement("torch==2.11.0")),
    )  # fmt: skip
    newest = {"app": replace(there["app"], version="2.0")}
    assert list(held_back(choice, newest, lambda _: "")) == [
        "app is 1.0, not 2.0: 2.0 requires `torch==2.11.0`, and torch is 2.6.0"
    ]


def test_what_a_toolkit_holds_back_without_torch_is_no_fault() -> None:
    numpy, asked = make_artifact("numpy", "1.0"), Requirement("numpy")
    choice = Choice(
        python="3.11", processor=X86_64, packages={"numpy": numpy}, extensions={}, parents={}, extras={},
        asked=(("the recipe", asked),), fixed=(Requirement("numpy<2"),), requires=lambda _: (),
    )  # fmt: skip
    assert list(held_back(choice, {"numpy": replace(numpy, version="2.0")}, lambda _: "")) == []


def test_the_code_of_a_project_reaches_nothing_of_this_machine(tmp_path: Path, lock: Lock) -> None:
    reach = f"""
import pathlib, socket, sys
here = pathlib.Path({str(tmp_path)!r})
(here / "touched").write_text("x")
try:
    pathlib.Path(sys.executable).unlink()
except OSError:
    pass
else:
    raise AssertionError("uv runs this Python outside the sandbox")
for name in ("spec.json", "answer.json"):
    link = pathlib.Path.home() / name
    link.unlink(missing_ok=True)
    link.symlink_to(here / "precious")
found = [one for one in here.rglob("*") if one.name in ("secret", "uv.toml")]
assert not found, found
try:
    socket.create_connection(("192.0.2.1", 9), 1)
except OSError as error:
    assert error.errno == 101, error  # not refused, but not reached
"""
    for name in ("secret", "precious"):
        (tmp_path / name).write_text("x")
    files = setup_only("plain", "1.0")
    files["setup.py"] = reach + files["setup.py"]
    lock(("plain",), write_sdist(tmp_path / "files", "plain", "1.0", files))
    assert not (tmp_path / "touched").exists()
    assert (tmp_path / "precious").read_text() == "x"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (own_backend("plain", "1.0", needs='"torch"'), "it is built against torch"),
        ({"setup.py": "import torch\n"}, "No module named 'torch'"),
        ({"setup.py": "raise SystemExit('no compiler')\n"}, "no compiler"),
        (own_backend("plain", "1.0", needs='"nowhere"'), "nowhere was not found"),
    ],
    ids=["declared", "undeclared", "broken", "tool"],
)
def test_a_project_that_cannot_be_asked_is_named_with_its_form_as_an_extension(
    tmp_path: Path, lock: Lock, files: dict[str, str], reason: str
) -> None:
    with pytest.raises(IncompatibleError, match=r"`plain 1\.0` has no wheel") as caught:
        lock(("plain",), write_sdist(tmp_path / "files", "plain", "1.0", files))
    assert reason in caught.value.message
    assert "`extensions: [{name: plain, sdist: plain==1.0}]`" in caught.value.hint


# What a package's own code, and what builds it, try on the machine that locks. The sandbox does not show the file `{mark}`.
ON_THE_MACHINE = "import os; os.path.isdir({folder!r}) and open({mark!r}, 'a').close()"
REPLACING = """

import ctypes, os, sys
ctypes.CDLL(None).mount(None, sys.prefix.encode(), None, 32 | 4096, None)  # writable, if this may mount
python = os.path.join(sys.prefix, "bin/python")
try:
    os.unlink(python)
    with open(python, "w") as out:
        out.write("#!/bin/sh\\ntouch {mark}\\nexec {real} \\"$@\\"\\n")
    os.chmod(python, 0o755)
except OSError:
    pass


def get_requires_for_build_wheel(config_settings=None):
    return ["wheel"]
"""


def test_nothing_of_a_source_distribution_runs_on_the_machine_that_locks(tmp_path: Path, lock: Lock) -> None:
    mark = tmp_path / "outside/ran"
    mark.parent.mkdir()
    files = own_backend("plain", "1.0", needs='"evil"')
    files["backend.py"] += REPLACING.format(mark=mark, real=sys.executable)
    start = ON_THE_MACHINE.format(folder=str(mark.parent), mark=str(mark))
    evil = write_wheel(tmp_path / "files", "evil", "1.0", files={"evil.pth": f"{start}\n", "evil.py": ""})
    found = lock(("plain",), write_sdist(tmp_path / "files", "plain", "1.0", files), evil)
    assert tools(found) == {"plain": ["evil", "wheel"]}
    assert not mark.exists()


@pytest.mark.parametrize(
    "requirement", ["other @ file:///etc", "other @ git+https://example.org/x", "-r /etc/passwd", "../other"]
)
def test_a_requirement_from_elsewhere_than_an_index_is_refused(
    tmp_path: Path, lock: Lock, requirement: str
) -> None:
    files = own_backend("plain", "1.0", needs=f'"{requirement}"')
    with pytest.raises(IncompatibleError, match=r"is no package of an index|does not say what it requires"):
        lock(("plain",), write_sdist(tmp_path / "files", "plain", "1.0", files))


def test_an_answer_that_is_none_is_refused(tmp_path: Path, lock: Lock) -> None:
    files = own_backend("plain", "1.0")
    files["backend.py"] += "\nimport os\nos.write(3, b'[' * 100_000)\nos._exit(0)\n"
    with pytest.raises(IncompatibleError, match="does not say what it requires"):
        lock(("plain",), write_sdist(tmp_path / "files", "plain", "1.0", files))
