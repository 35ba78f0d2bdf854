"""The rows of `bench/run`, and their targets. Each row prepares, yields the ways to do one job, and cleans up."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import growth
import yaml
from jobs import OURS, Target, Way
from measure import ENVBUILDER, REPOSITORY, forget
from peer_words import for_hpccm, for_neurodocker
from place import ALIAS, NO_ENGINE, Place, lacks, loopback_registry

from envbuilder.core.process import ProcessRunner
from envbuilder.lock.resolve import make_target
from envbuilder.lock.resolve.wheels import torch_requirement
from envbuilder.recipe.load import load
from envbuilder.sources.names import probe_sources

BENCH: Final = REPOSITORY / "bench"
PYTHON: Final = REPOSITORY / ".venv/bin/python"
UV: Final = REPOSITORY / ".venv/bin/uv"
DEFAULT: Final = "apptainer build"
FOLDER: Final = "a plain folder"
FLOOR: Final = "mksquashfs without compression"
USUAL: Final = "Dockerfile + apptainer build"
BUILDAH: Final = "the same Dockerfile by buildah"
CARELESS: Final = "a careless Dockerfile + apptainer build"
RENDER: Final = "hpccm, render"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    key: str
    title: str
    pairs: int  # how often each way is done, in turn
    ways: Callable[[Place], "contextlib.AbstractContextManager[list[Way]]"]
    warm_up: bool = (
        False  # run once more before, without counting: this writes byte code and loads files into memory
    )


def tool(name: str, *argv: object, **more: object) -> Way:
    return Way(tool=name, commands=(argv,), **more)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------- commands


@contextlib.contextmanager
def version(place: Place) -> Iterator[list[Way]]:
    programs = {OURS: ENVBUILDER, "hpccm": place.peer("hpccm"), "neurodocker": place.peer("neurodocker")}
    yield [tool(name, program, "--version") for name, program in programs.items()]


@contextlib.contextmanager
def help_(place: Place) -> Iterator[list[Way]]:
    programs = {OURS: ENVBUILDER, "hpccm": place.peer("hpccm"), "neurodocker": place.peer("neurodocker")}
    yield [tool(name, program, "--help") for name, program in programs.items()]


@contextlib.contextmanager
def tab(place: Place) -> Iterator[list[Way]]:
    ours = {
        "_ENVBUILDER_COMPLETE": "complete_bash",
        "COMP_WORDS": "envbuilder show ",
        "COMP_CWORD": "2",
    }
    theirs = {
        "_NEURODOCKER_COMPLETE": "bash_complete",
        "COMP_WORDS": "neurodocker generate ",
        "COMP_CWORD": "2",
    }
    yield [
        tool(OURS, ENVBUILDER, env=ours),
        tool("neurodocker", place.peer("neurodocker"), env=theirs),
        Way(tool="hpccm", missing="it completes nothing"),
    ]


@contextlib.contextmanager
def check(place: Place) -> Iterator[list[Way]]:
    recipe = yaml.safe_load((REPOSITORY / "recipes/a100.yaml").read_text())
    script = place.folder("words") / "a100.py"
    script.write_text(for_hpccm(recipe))
    yield [
        tool(OURS, ENVBUILDER, "check", "a100"),
        tool("Typer, PyYAML and packaging, imported", PYTHON, BENCH / "ways/import_libraries.py"),
        tool(RENDER, place.peer("hpccm"), "--recipe", script),
        tool(
            "neurodocker, render",
            place.peer("neurodocker"),
            "generate",
            "docker",
            *for_neurodocker(recipe),
        ),
    ]


@contextlib.contextmanager
def lock(place: Place) -> Iterator[list[Way]]:
    folder = place.folder("lock")
    environment = dict(os.environ)
    sources = probe_sources(environment, ProcessRunner(environment))
    recipe = load(place.recipes / f"{ALIAS}.yaml")
    torch, build = torch_requirement(recipe, make_target(recipe), folders=sources.folders)
    (folder / "wheels.in").write_text(
        "".join(f"{line}\n" for line in (torch, "setuptools", *recipe.packages))
    )
    main, *more = sources.indexes
    urls = [*more, *([f"{sources.pytorch}{build}"] if build else [])]
    text = "".join(f'[[index]]\nurl = "{url}"\n' for url in urls)
    links = ", ".join(f'"{path}"' for path in sources.folders)
    (folder / "uv.toml").write_text(
        f'find-links = [{links}]\nindex-strategy = "unsafe-best-match"\n{text}[[index]]\nurl = "{main}"\ndefault = true\n'
    )
    certificates = {"SSL_CERT_FILE": str(sources.certificates)} if sources.certificates else {}
    caches = {name: place.folder(f"lock/{name}") for name in ("uv", "pip")}
    options = ("--python-version", recipe.python, "--generate-hashes", "--only-binary", ":all:")
    yield [
        tool(OURS, PYTHON, BENCH / "ways/lock_wheels.py", ALIAS, place.recipes),
        tool(f"{OURS}, the choice alone", PYTHON, BENCH / "ways/lock_wheels.py", ALIAS, place.recipes, tells=True),
        tool(f"{OURS}, the whole lock", ENVBUILDER, "lock", ALIAS, "--upgrade", "--recipes", place.recipes),
        tool(
            "uv pip compile", UV, "pip", "compile", folder / "wheels.in", *options, "--config-file", folder / "uv.toml",
            "--cache-dir", caches["uv"], "--output-file", folder / "uv.txt", "--quiet", env=certificates,
        ),
        tool(
            "pip-compile", place.peer("pip-compile"), "--generate-hashes", "--quiet", "--no-header", "--no-strip-extras",
            "--cache-dir", caches["pip"], "--pip-args", "--only-binary=:all:",
            "--output-file", folder / "pip.txt", folder / "wheels.in",
        ),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- from one image


@contextlib.contextmanager
def sif(place: Place) -> Iterator[list[Way]]:
    out = place.folder("sif")
    image, tree = f"oci:{place.layout}", place.tree
    zstd = "-comp zstd -Xcompression-level 3 -b 256K"
    names = {name: out / f"{name}.sif" for name in (ALIAS, "zstd", "floor")}
    writer = BENCH / "ways/write_sif.py"
    yield [
        tool(OURS, PYTHON, writer, ALIAS, place.recipes, out, result=names[ALIAS]),
        tool(DEFAULT, "apptainer", "build", place.work / "default.sif", image, result=place.work / "default.sif"),
        tool(
            "apptainer build, zstd", "apptainer", "build", "--mksquashfs-args", zstd, names["zstd"], image,
            result=names["zstd"],
        ),
        tool(
            "mksquashfs, zstd, of a folder", "mksquashfs", tree, names["floor"], *zstd.split(), "-noappend", "-quiet",
            "-no-progress", result=names["floor"],
        ),
    ]  # fmt: skip


def imports(
    *, cold: bool, processes: int, floor: bool = False
) -> Callable[[Place], "contextlib.AbstractContextManager[list[Way]]"]:
    one = "python -c 'import torch'"
    many = f"for i in $(seq {processes}); do {one} & done; wait"

    @contextlib.contextmanager
    def ways(place: Place) -> Iterator[list[Way]]:
        roots = {OURS: place.sif, DEFAULT: place.default_sif, FOLDER: place.tree}
        if floor:
            roots[FLOOR] = place.plain_squashfs
        yield [
            tool(
                name, "apptainer", "exec", "--env", "PYTHONNOUSERSITE=1", root, "sh", "-c", many if processes > 1 else one,
                before=(lambda root=root: forget(root)) if cold else bool,
            )
            for name, root in roots.items()
        ]  # fmt: skip

    return ways


@contextlib.contextmanager
def import_again(place: Place) -> Iterator[list[Way]]:
    roots = {OURS: place.sif, DEFAULT: place.default_sif, FOLDER: place.tree}
    options = ("--env", "PYTHONNOUSERSITE=1", "--bind", f"{REPOSITORY}:{REPOSITORY}:ro")
    script = BENCH / "ways/import_again.py"
    yield [
        tool(name, "apptainer", "exec", *options, root, "python", script, tells=True)
        for name, root in roots.items()
    ]


@contextlib.contextmanager
def extension(place: Place) -> Iterator[list[Way]]:
    script, sources = BENCH / "ways/load_fused.py", REPOSITORY / "recipes/fused"
    command = ("python", script, sources)
    binds = ("--bind", f"{REPOSITORY}:{REPOSITORY}:ro", "--bind", place.work)

    def jit(name: str, kept: Path, before: Callable[[], object]) -> Way:
        options = ("--env", f"ENVBUILDER_EXTENSIONS=off,TORCH_EXTENSIONS_DIR={kept}")
        return tool(name, "apptainer", "exec", *binds, *options, place.sif, *command, before=before)

    def empty(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    changed = place.folder("edited") / "fused"
    shutil.copytree(sources, changed)
    with (changed / "fused_bias_act.cpp").open("a", encoding="utf-8") as stream:
        stream.write("// an edit\n")
    options = ("--env", "ENVBUILDER_EXTENSIONS=build")
    edited = tool(
        f"{OURS}, edited and compiled before",
        "apptainer", "exec", *binds, *options, place.sif, "python", script, changed,
    )  # fmt: skip
    warm = place.folder("jit-warm")
    for once in (edited, jit("", warm, bool)):
        place.prepare(*once.commands[0])
    yield [
        tool(OURS, "apptainer", "exec", *binds, place.sif, *command),
        edited,
        jit("torch, compiled before", warm, bool),
        jit("torch, compiled now", place.work / "jit", lambda: empty(place.work / "jit")),
    ]


@contextlib.contextmanager
def loads(place: Place) -> Iterator[list[Way]]:
    """Load ten extensions of a read-only SIF."""
    folder, out = place.folder("loads"), place.folder("loads-built")
    recipe = growth.write_extensions(place, folder, 10)
    place.prepare(
        ENVBUILDER, "build", recipe.stem, "--recipes", folder, "--output", out, env=NO_ENGINE
    )  # fmt: skip
    script, sif = BENCH / "ways/load_several.py", out / f"{recipe.stem}.sif"
    binds = ("--bind", f"{REPOSITORY}:{REPOSITORY}:ro", "--bind", f"{folder}:{folder}:ro")
    yield [
        tool(f"{OURS}, {amount} process{'es' * (amount > 1)}", "apptainer", "exec", *binds, sif, "python", script, folder, amount, tells=True)
        for amount in (1, 8)
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------- registry


def transfers(form: str, *, push: bool) -> Callable[[Place], "contextlib.AbstractContextManager[list[Way]]"]:
    @contextlib.contextmanager
    def ways(place: Place) -> Iterator[list[Way]]:
        missing = lacks("docker-registry", "skopeo" if form == "image" else "apptainer")
        if missing:
            yield [Way(tool=OURS, missing=missing)]
            return
        folder = place.folder("registry")
        with loopback_registry(folder) as host:
            out, fresh = place.work / "pulled", {"ENVBUILDER_CACHE": f"{place.work}/fresh"}

            def forget_all() -> None:
                """Remove pulled artifacts, and the records of earlier pushes."""
                for one in (out, place.work / "fresh"):
                    shutil.rmtree(one, ignore_errors=True)

            def make_out() -> None:
                forget_all()
                out.mkdir()

            def empty() -> None:
                forget_all()
                shutil.rmtree(folder / "data", ignore_errors=True)

            own, peers = f"{host}/ours/env:1", f"{host}/theirs/{form}:1"
            upload = tool(
                OURS, ENVBUILDER, "push", ALIAS, own, "--only", form, "--artifacts", place.built, env=fresh
            )
            download = tool(OURS, ENVBUILDER, "pull", own, "--only", form, "--output", out, env=fresh)
            if form == "image":
                sent = tool(
                    "skopeo",
                    "skopeo",
                    "copy",
                    "--dest-tls-verify=false",
                    f"oci:{place.layout}",
                    f"docker://{peers}",
                )
                got = tool(
                    "skopeo",
                    "skopeo",
                    "copy",
                    "--src-tls-verify=false",
                    f"docker://{peers}",
                    f"oci:{out}/image:1",
                    before=make_out,
                )
            else:
                sent = tool("apptainer", "apptainer", "push", "--no-https", place.sif, f"oras://{peers}")
                got = tool(
                    "apptainer",
                    "apptainer",
                    "pull",
                    "--no-https",
                    "--disable-cache",
                    out / "env.sif",
                    f"oras://{peers}",
                    before=make_out,
                )
            if push:
                yield [
                    Way(tool=way.tool, commands=way.commands, env=way.env, before=empty)
                    for way in (upload, sent)
                ]
            else:
                for way in (upload, sent):
                    place.prepare(*way.commands[0], env=way.env)
                yield [
                    Way(tool=OURS, commands=download.commands, env=fresh, before=forget_all, result=out),
                    Way(tool=got.tool, commands=got.commands, before=got.before, result=out),
                ]  # fmt: skip
            empty()

    return ways


ROWS: Final = (
    Row(key="version", title="`--version`", pairs=10, ways=version, warm_up=True),
    Row(key="help", title="`--help`", pairs=10, ways=help_, warm_up=True),
    Row(key="tab", title="TAB in bash", pairs=10, ways=tab, warm_up=True),
    Row(key="check", title="check `a100`", pairs=10, ways=check, warm_up=True),
    Row(key="lock", title="lock `cpu`: its wheels, warm cache", pairs=5, ways=lock, warm_up=True),
    Row(key="sif", title="SIF of an image that is there", pairs=2, ways=sif),
    Row(key="import-warm", title="`import torch`, warm, in a new container", pairs=5, ways=imports(cold=False, processes=1, floor=True), warm_up=True),
    Row(key="import-again", title="`import torch`, again in the same container", pairs=5, ways=import_again),
    Row(key="import-cold", title="`import torch`, cold", pairs=5, ways=imports(cold=True, processes=1)),
    Row(key="import8-warm", title="`import torch` in 8 processes, warm", pairs=2, ways=imports(cold=False, processes=8), warm_up=True),
    Row(key="import8-cold", title="`import torch` in 8 processes, cold", pairs=2, ways=imports(cold=True, processes=8)),
    Row(key="extension", title="load an extension", pairs=2, ways=extension),
    Row(key="loads", title="load ten extensions, beside the import of torch", pairs=5, ways=loads),
    Row(key="push-image", title="push the image", pairs=5, ways=transfers("image", push=True)),
    Row(key="push-sif", title="push the SIF", pairs=5, ways=transfers("sif", push=True)),
    Row(key="pull-image", title="pull the image", pairs=5, ways=transfers("image", push=False)),
    Row(key="pull-sif", title="pull the SIF", pairs=5, ways=transfers("sif", push=False)),
    Row(key="packages", title="build with n more packages", pairs=2, ways=growth.packages),
    Row(key="extensions", title="build with n more extensions", pairs=1, ways=growth.extensions),
    Row(key="recipes", title="build n recipes that share layers", pairs=2, ways=growth.recipes),
)  # fmt: skip

# Rows of `bench/compare`: its letters for envbuilder's way and for the usual way.
BUILDS: Final = {
    "cold": ("image + SIF, cold", {OURS: "a", USUAL: "d", BUILDAH: "g", CARELESS: "n"}),
    "edit": ("image + SIF, one line of the extension changed", {OURS: "b", USUAL: "e", BUILDAH: "h"}),
    "noop": ("image + SIF, nothing changed", {OURS: "c", USUAL: "f", BUILDAH: "i"}),
}
BUILD_PAIRS: Final = 2

TARGETS: Final = (
    Target(job="help", what="cpu", most=0.35, words="`--help`, CPU seconds"),
    Target(job="check", what="cpu", most=0.35, words="`check a100`, CPU seconds"),
    Target(job="cold", what="wall", peer=USUAL, most=1 / 5, words="cold image + SIF of `cpu`, wall in proportion to the usual way"),
    Target(job="sif", what="cpu", peer=DEFAULT, most=1 / 9, words="SIF alone, CPU in proportion to Apptainer's default"),
    Target(job="sif", what="result", peer=DEFAULT, most=1.0, words="SIF alone, bytes in proportion to Apptainer's default"),
    Target(job="edit", what="beyond", most=6, words="one-line edit, seconds beside the compiler's"),
    Target(job="noop", what="wall", most=0.6, words="nothing changed, seconds"),
    Target(job="import-warm", what="wall", peer=FLOOR, most=1.1, words="`import torch` warm, in a new container, wall in proportion to a squashfs without compression"),
    Target(job="import-again", what="wall", peer=FOLDER, most=1.05, words="`import torch` again in the same container, wall in proportion to a plain folder"),
)  # fmt: skip
