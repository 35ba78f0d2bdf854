"""Apt repositories beside the base's, on loopback: one of a site in an environment, and NVIDIA's shape with a real compiler."""

import os
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from envbuilder.core.cache import save_text
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import recipe_inputs
from envbuilder.lock.resolve import make_target
from envbuilder.lock.resolve.context import LockOptions
from envbuilder.lock.resolve.debs import resolve_repository_debs
from envbuilder.lock.resolve.toolkit import resolve_toolkit
from envbuilder.recipe.load import load
from envbuilder.recipe.repository import Repository
from tests.e2e.test_toolkits import compile_with, fetched, lay_out, means, recipe
from tests.support import redist
from tests.support.package_sources import signing_key, write_deb, write_flat, write_suite
from tests.support.redist import served
from tests.support.workbench import NO_ENGINE, Built, build, resolve_context, run

pytestmark = pytest.mark.builds

OPTIONS = LockOptions(today=date(2026, 11, 23))
HEAD = "Origin: Site\nLabel: Site\nSuite: stable\nCodename: stable\n"
ENTRY = """\
apt: [site-tool]
apt_sources:
  - {name: site, url: "%s", suite: stable, components: [main], key: site.gpg}
"""


# The packages of NVIDIA's repositories that hold the components of its archive.
PACKAGES = {
    "cuda_cudart": "cuda-cudart-dev", "cuda_cccl": "cuda-thrust", "cuda_profiler_api": "cuda-nvprof",
    "cuda_nvrtc": "cuda-nvrtc-dev", "libcublas": "libcublas-dev", "libcufft": "libcufft-dev",
    "libcurand": "libcurand-dev", "libcusolver": "libcusolver-dev", "libcusparse": "libcusparse-dev",
}  # fmt: skip
STUBS = "lib/stubs/libcuda.so"


@pytest.mark.release  # 30 s of CPU; `test_bases.py` locks and fetches for every change
def test_a_package_of_a_recipe_s_repository_is_in_the_environment(tiny: Built, spacious: Path) -> None:
    """The recipe's address does not answer any more when the build runs: a setting names a mirror."""
    assert tiny.recipe
    path, lock = spacious / "sited.yaml", load_lock(tiny.recipe.with_suffix(".lock"))
    listing = write_deb(
        spacious / "apt", "site-tool", "1.0-1", "libc6", files={"usr/share/site-tool/word": b"hello\n"}
    )
    with signing_key(path.parent / "site.gpg") as sign:
        write_suite(spacious / "apt", "stable", {"main": listing}, sign, HEAD)
    context = resolve_context(os.environ | {"ENVBUILDER_CACHE": str(spacious / "cache")})
    with served(spacious / "apt") as address:
        path.write_text(tiny.recipe.read_text() + ENTRY % address)
        wanted = load(path)
        target = make_target(wanted)
        (tool,) = resolve_repository_debs(wanted, target, ["site-tool"], context, options=OPTIONS)
    debs = tuple(sorted((*lock.debs, tool), key=lambda deb: deb.name))
    whole = replace(lock, recipe=wanted.digest, inputs=recipe_inputs(wanted), debs=debs)
    save_text(path.with_suffix(".lock"), lock_text(whole))
    with served(spacious / "apt") as address:
        build(str(path), spacious / "out", env=NO_ENGINE | {"ENVBUILDER_APT_MIRRORS": f"site={address}"})
    said = run("apptainer", "exec", spacious / "out/sited.sif", "cat", "/usr/share/site-tool/word")
    assert said == "hello\n"


@pytest.mark.release
def test_packages_in_nvidia_s_layout_make_a_toolkit_that_compiles(spacious: Path) -> None:
    """Debian's 11.8 under the names of 11.3, 860 MB of packages."""
    plain, context = recipe("11.8", pytorch="1.13.1", gcc="11"), means()
    debs = resolve_toolkit(plain, make_target(plain), context, old=(), options=OPTIONS)
    components = redist.components_11_8(fetched(debs, context), spacious / "cut")
    cudart = dict(components["cuda_cudart"][1])
    components["cuda-driver-dev"] = ("11.8.89", {STUBS: cudart.pop(STUBS)})
    components["cuda_cudart"] = ("11.8.89", cudart)
    repository = spacious / "repos/ubuntu2004/x86_64"
    listing = "\n".join(
        write_deb(repository, name, "11.3.109-1", "", pool=".", files=nvidia_layout(name, tree))
        for name, tree in ((package_of(component), tree) for component, (_, tree) in components.items())
    )
    write_flat(repository, listing, spacious / "nvidia.gpg")
    with served(spacious / "repos") as address:
        own = Repository(
            name="nvidia-ubuntu2004", url=f"{address}ubuntu2004/x86_64/", suite="/", components=(), keys=("nvidia.gpg",)
        )  # fmt: skip
        wanted = replace(plain, cuda="11.3", path=spacious / "x.yaml", apt_sources=(own,))
        context.fetcher.know({own.source: own.url})
        parts = resolve_toolkit(wanted, make_target(wanted), context, old=(), options=OPTIONS)
        assert {part.source for part in parts} == {own.source}
        home = lay_out(wanted, parts, "nvidia-cuda-runtime-cu11==11.7.99", spacious, context)
    assert home.name == "cuda-11.3"
    compile_with(home, spacious, "-std=c++14", "--allow-unsupported-compiler", "-lcuda")
    assert (home / "include/cublas_v2.h").is_file()


def package_of(component: str) -> str:
    return f"{PACKAGES.get(component, component.replace('_', '-'))}-11-3"


def nvidia_layout(name: str, tree: redist.Tree) -> dict[str, bytes]:
    """Return the files of a component at their places in NVIDIA's packages."""
    root, found = "usr/local/cuda-11.3", {}
    for path, content in tree.items():
        assert not isinstance(content, str), "no link in these"
        place = (
            f"{root}/targets/x86_64-linux/{path}"
            if path.startswith(("include/", "lib/"))
            else f"{root}/{path}"
        )
        place = f"usr/share/doc/{name}/copyright" if path == "LICENSE" else place
        found[place] = content.read_bytes() if isinstance(content, Path) else content
    return found
