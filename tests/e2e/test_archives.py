"""Debian's own security archive, Ubuntu's own archive, one in Ubuntu's shape with real packages, and a recipe's own repository.

`tests/lock/test_resolve.py` and `test_image_bases.py` hold the same for every change, with small packages in archives of their own.
The sets of requirements are asked of the package index of this machine; `tests/lock/test_like_uv.py` has indexes of its own.
"""

import lzma
import os
import urllib.request
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.cache import Store, save_text
from envbuilder.core.console import Console
from envbuilder.core.process import ProcessRunner
from envbuilder.core.processor import X86_64
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import recipe_inputs
from envbuilder.lock.package_lists import lists_folder, security_updates
from envbuilder.lock.resolve import make_target
from envbuilder.lock.resolve.context import LockOptions, open_context
from envbuilder.lock.resolve.debs import resolve_debs, resolve_repository_debs
from envbuilder.lock.resolve.wheels import ALWAYS, implied_wheels, resolve_wheels, torch_requirement
from envbuilder.recipe.load import load
from envbuilder.sources.names import UBUNTU_ARCHIVE
from tests.support.locks import compiled, make_recipe, make_task
from tests.support.package_sources import signing_key, write_deb, write_suite
from tests.support.serving import served
from tests.support.workbench import NO_ENGINE, ROOT, Built, build, resolve_context, run

pytestmark = [pytest.mark.builds, pytest.mark.release]
OPTIONS = LockOptions(today=date(2026, 11, 23))
HEAD = "Origin: Site\nLabel: Site\nSuite: stable\nCodename: stable\n"
ENTRY = """\
apt: [site-tool]
apt_sources:
  - {name: site, url: "%s", suite: stable, components: [main], key: site.gpg}
"""


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_a_lock_takes_the_security_updates_of_debians_archive(suite: str, tmp_path: Path):
    row, context = load_distributions().by_name[f"debian/{suite}"], resolve_context()
    recipe = make_recipe(tmp_path, base=row.name, python=row.python, gcc=row.gcc)
    debs = resolve_debs(make_task(recipe, context, OPTIONS))
    updates = [deb for deb in debs if deb.source == "debian-security"]
    context.fetcher.fetch(
        sorted(updates, key=lambda deb: deb.size)[:1]
    )  # none when a point release just took all
    folder = lists_folder(context.store, row, row.components, X86_64, security=True)
    assert security_updates(folder, debs, context.runner) == {}
    plain = resolve_debs(make_task(replace(recipe, security=False), context, OPTIONS))
    assert {deb.source for deb in plain} == {"debian"}
    older = {deb.name for deb in plain if deb not in debs}
    assert security_updates(folder, plain, context.runner).keys() <= older


def test_an_archive_in_ubuntus_shape_becomes_an_environment(spacious: Path):
    """Debian's next release has the compiler and the Python of Ubuntu 26.04. Its packages stand in for Ubuntu's."""
    context = resolve_context()
    mirror = context.sources().debian[0]
    with urllib.request.urlopen(f"{mirror}dists/forky/main/binary-amd64/Packages.xz") as answer:
        listing = lzma.decompress(answer.read()).decode()
    archive, keyring = spacious / "archive", spacious / "ubuntu.gpg"
    with signing_key(keyring) as sign:
        for pocket, text in (("", listing), ("-updates", ""), ("-security", "")):
            head = f"Origin: Ubuntu\nLabel: Ubuntu\nSuite: resolute{pocket}\nCodename: resolute\n"
            write_suite(archive, f"resolute{pocket}", {"main": text, "universe": ""}, sign, head)
    need_environment("resolute", spacious, (f"{archive.as_uri()}/", mirror), keyring)


@pytest.mark.parametrize("suite", ["focal", "noble"])
def test_ubuntus_own_archive_becomes_an_environment(suite: str, spacious: Path):
    """Its keys come from Debian's package. The first of these has a dash that needs a folder of manual pages."""
    try:
        urllib.request.urlopen(f"{UBUNTU_ARCHIVE}dists/{suite}/InRelease", timeout=30).close()
    except OSError:
        pytest.skip("Ubuntu's archive is not reached from here")
    need_environment(suite, spacious, (UBUNTU_ARCHIVE,), None)


def need_environment(suite: str, folder: Path, mirrors: tuple[str, ...], keyring: Path | None) -> None:
    """Lock and build an environment without torch on this Ubuntu, and compile and run Python in it."""
    context, row = resolve_context(), load_distributions().by_name[f"ubuntu/{suite}"]
    path = folder / f"{suite}.yaml"
    torch = (
        "2.9.1" if row.python == "3.14" else "2.4.1"
    )  # a release for this Python, whose wheels are not fetched
    pins = {"python": row.python, "gcc": row.gcc, "libxcrypt": row.short_libxcrypt, "pytorch": torch}
    path.write_text("".join([f"base: {row.name}\n", *(f'{key}: "{pin}"\n' for key, pin in pins.items())]))
    recipe, cpu = load(path), load_lock(ROOT / "recipes/cpu.lock")
    sources = replace(context.sources(), ubuntu=mirrors, ubuntu_keyring=keyring)
    means = replace(context, sources=lambda: sources)
    lock = replace(
        cpu, recipe=recipe.digest, inputs=recipe_inputs(recipe),
        debs=resolve_debs(make_task(recipe, means, OPTIONS)),
        wheels=tuple(wheel for wheel in cpu.wheels if wheel.name == "typing-extensions"), extensions=(),
    )  # fmt: skip
    save_text(path.with_suffix(".lock"), lock_text(lock))
    env = NO_ENGINE | {"ENVBUILDER_UBUNTU_MIRROR": " ".join(mirrors), "PATH": os.environ["PATH"]}
    build(str(path), folder / "out", "--runner", "sandbox", env=env)
    works = f"python{row.python} -c 'import ssl' && gcc -xc -o /tmp/a - <<<'int main(void) {{ return 0; }}' && /tmp/a"
    run("apptainer", "exec", "--contain", folder / f"out/{suite}.sif", "bash", "-c", works)


def test_a_package_of_a_recipe_s_repository_is_in_the_environment(tiny: Built, spacious: Path) -> None:
    """The recipe's address does not answer any more when the build runs: a setting names a mirror."""
    assert tiny.recipe
    path, lock = spacious / "sited.yaml", load_lock(tiny.recipe.with_suffix(".lock"))
    files = {"usr/share/site-tool/word": b"hello\n"}
    listing = write_deb(spacious / "apt", "site-tool", "1.0-1", "libc6", files=files)
    with signing_key(path.parent / "site.gpg") as sign:
        write_suite(spacious / "apt", "stable", {"main": listing}, sign, HEAD)
    context = resolve_context(os.environ | {"ENVBUILDER_CACHE": str(spacious / "cache")})
    with served(spacious / "apt") as address:
        path.write_text(tiny.recipe.read_text() + ENTRY % address)
        wanted = load(path)
        (tool,) = resolve_repository_debs(make_task(wanted, context, OPTIONS), ["site-tool"])
    debs = tuple(sorted((*lock.debs, tool), key=lambda deb: deb.name))
    whole = replace(lock, recipe=wanted.digest, inputs=recipe_inputs(wanted), debs=debs)
    save_text(path.with_suffix(".lock"), lock_text(whole))
    with served(spacious / "apt") as address:
        build(str(path), spacious / "out", env=NO_ENGINE | {"ENVBUILDER_APT_MIRRORS": f"site={address}"})
    printed = run("apptainer", "exec", spacious / "out/sited.sif", "cat", "/usr/share/site-tool/word")
    assert printed == "hello\n"


SETS = [
    line
    for line in Path(__file__).with_name("real_index.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all sets, whose caches of metadata they share."""
    return tmp_path_factory.mktemp("real-index")


def test_there_are_forty_sets():
    assert len(SETS) == 40


@pytest.mark.parametrize("line", SETS)
def test_a_lock_has_the_versions_of_a_plain_compile(
    line: str, folder: Path, caplog: pytest.LogCaptureFixture
):
    torch, cuda, python, *packages = line.replace("- ", " ").split(" ")
    recipe = make_recipe(
        folder, pytorch=torch, cuda=cuda, python=python, packages=tuple(packages),
        gpus=("A100",) if cuda else (),
    )  # fmt: skip
    target = make_target(recipe)
    environment = dict(os.environ)
    context = open_context(
        Store(folder / "cache"), ProcessRunner(environment), environment, Console(quiet=True), offline=False
    )
    with context.store.in_use():
        resolved = resolve_wheels(make_task(recipe, context, OPTIONS, target))
    pin, build = torch_requirement(recipe, target, folders=context.sources().folders)
    row = target.torch
    bounds = (
        ((f"numpy{row.numpy}", row.numpy), (f"setuptools{row.setuptools}", row.setuptools)) if row else ()
    )
    plain = compiled(
        (*([pin] if pin else []), *ALWAYS, *packages, *implied_wheels(recipe, None)), context.sources(),
        folder, constraints=[text for text, bound in bounds if bound],
        finals=[message.partition(" ")[0] for message in caplog.messages if "it is a pre-release" in message],
        build=build, python=python,
    )  # fmt: skip
    print(*caplog.messages, sep="\n")
    assert {wheel.name: wheel.version for wheel in resolved.artifacts} == plain
