"""`init --from IMAGE`, `lock`, `build` and `exec` on an image of a registry whose torch no index has: it stays the environment's.

`tests/init/test_vendor_image.py` and `tests/compat/test_rules_base_image.py` hold the parts for every change.
"""

import json
from pathlib import Path

import pytest

from tests.support import bases
from tests.support.registries import push, registry
from tests.support.two_runners import inside
from tests.support.workbench import ENVBUILDER, NO_ENGINE, Built, build, run

pytestmark = [pytest.mark.builds, pytest.mark.release]

VERSION = "2.6.0a0+site.1"
SITE = "usr/local/lib/python3.11/dist-packages"
TORCH: dict[str, bytes | str] = {
    "usr/local/lib/link -> python3.11": "",
    f"{SITE}/torch/__init__.py": f"__version__ = {VERSION!r}\n",
    f"{SITE}/torch/version.py": "cuda: Optional[str] = None\n",
    f"{SITE}/torch-{VERSION}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n",
}


def vendor_image(tiny: Built) -> bases.Packed:
    """Return the system of `tiny`, whose Python runs, with a torch of its own."""

    def blob(digest: str) -> bytes:
        return (tiny.layout / "blobs" / digest.replace(":", "/")).read_bytes()

    index = json.loads((tiny.layout / "index.json").read_text())
    manifest = json.loads(blob(index["manifests"][0]["digest"]))
    config, lowest = json.loads(blob(manifest["config"]["digest"])), manifest["layers"][0]
    above = bases.pack(bases.Shape([TORCH]))
    config["rootfs"]["diff_ids"] = [
        config["rootfs"]["diff_ids"][0],
        *json.loads(above.config)["rootfs"]["diff_ids"],
    ]
    config["config"] = {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]}
    config.pop("history", None)
    return bases.Packed(
        config=json.dumps(config).encode(), blobs=[blob(lowest["digest"]), *above.blobs], media_types=[lowest["mediaType"], *above.media_types],
    )  # fmt: skip


def test_the_torch_of_an_image_is_that_of_the_environment(tiny: Built, spacious: Path):
    with registry(spacious / "registry") as server:
        push(server.host, "vendor", vendor_image(tiny))
        words = ("init", "mine", "--recipes", ".", "--from", f"{server.host}/site/vendor:1", "--gpu", "none")
        run(ENVBUILDER, *words, cwd=spacious)
        recipe = spacious / "mine.yaml"
        assert "\npytorch: image" in recipe.read_text()
        run(ENVBUILDER, "lock", recipe)
        built = build(str(recipe), spacious / "built", env=NO_ENGINE)
    said = inside(built, recipe, "python", "-c", "import torch; print(torch.__version__, torch.__file__)")
    assert said == f"{VERSION} /{SITE}/torch/__init__.py\n"
