"""An apt repository of a recipe, on loopback, in an environment."""

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
from envbuilder.recipe.load import load
from tests.support.package_sources import signing_key, write_deb, write_suite
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
