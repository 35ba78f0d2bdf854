"""An environment with wheels from an address, an index, a page and the recipe's folder is built, also without any of them.

`tests/lock/test_wheel_sources.py` holds the lock and what is fetched for every change.
"""

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from envbuilder.compat.repositories import addresses
from envbuilder.core.cache import save_text
from envbuilder.lock.file import lock_text
from envbuilder.lock.resolve.wheels import resolve_wheels
from envbuilder.recipe.load import load
from tests.support.locks import make_task
from tests.support.package_sources import write_index, write_wheel
from tests.support.serving import served
from tests.support.tiny import make_tiny
from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    WITHOUT_NETWORK,
    build,
    cache_with_toolbox,
    resolve_context,
    run,
)

pytestmark = [pytest.mark.builds, pytest.mark.release]
MORE = """\
packages: [scatter, core-app, "mine @ file:wheels/mine-1.0-py3-none-any.whl", "fast @ {url}v2/fast-2.0%2Bcu12-py3-none-any.whl"]
indexes:
  - {{name: pyg, find_links: "{url}page.html", packages: [scatter]}}
  - {{name: corp, url: "{url}own", packages: [core-*]}}
tests:
  - python -c "import core_app, fast, mine, scatter"
"""


def test_wheels_of_four_kinds_are_built_online_and_offline(spacious: Path):
    web, here = spacious / "web", spacious / "here"
    scatter = write_wheel(web / "files", "scatter", "2.0+pt26")
    (web / "page.html").write_text(f'<a href="files/{quote(scatter.name)}">wheel</a>')
    write_index(web / "own", write_wheel(web / "files", "core_app", "1.0"))
    write_wheel(web / "v2", "fast", "2.0+cu12")
    write_wheel(here / "wheels", "mine", "1.0")
    with served(web) as url:
        path, lock = make_tiny(here, "sources", (), pytorch="none", more=MORE.format(url=url))
        recipe, context = load(path), resolve_context()
        context.fetcher.know(addresses(recipe, None))
        wheels = resolve_wheels(make_task(recipe, context)).artifacts
        save_text(path.with_suffix(".lock"), lock_text(replace(lock, wheels=wheels)))
        online = build(str(path), spacious / "online", "--runner", "sandbox", env=NO_ENGINE)
        run(ENVBUILDER, "check", path)
        run(ENVBUILDER, "cache", "vendor", path, spacious / "vendored")
    sbom = json.loads(run(ENVBUILDER, "show", online.sif, "--sbom"))
    named = {
        package["name"]: package["sourceInfo"] for package in sbom["packages"] if "sourceInfo" in package
    }
    assert named["scatter"] == f"links-pyg: {scatter.name}"
    assert named["mine"] == "recipe: wheels/mine-1.0-py3-none-any.whl"
    env = NO_ENGINE | {
        "ENVBUILDER_CACHE": str(cache_with_toolbox(spacious / "cache")),
        "ENVBUILDER_FOLDERS": str(spacious / "vendored/files"),
    }
    recipe_there = str(spacious / "vendored/sources.yaml")
    offline = build(
        recipe_there,
        spacious / "offline",
        "--offline",
        "--runner",
        "sandbox",
        env=env,
        prefix=WITHOUT_NETWORK,
    )
    assert offline.digests == online.digests
    assert (spacious / "vendored/wheels/mine-1.0-py3-none-any.whl").is_file()
