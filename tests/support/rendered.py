"""Build what `render` prints, out of a base that has nothing of envbuilder and files that lie here, and compare the result."""

import contextlib
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from envbuilder.core.processor import X86_64, Processor
from envbuilder.layers.entry import Entry, Kind
from envbuilder.verify.compare import compare
from tests.support.plans import DIFFERS
from tests.support.workbench import ENVBUILDER, ROOT, WITH_ZSTD, open_folder, run

BASE = "envbuilder-e2e-render-base"
INCLUDE = "ca-certificates,curl,git,python3-pip"  # what fetches; a base without it installs it


@contextlib.contextmanager
def make_base(processor: Processor = X86_64) -> Iterator[str]:
    """Make what stands in for an image of Debian: one with apt."""
    name = f"{BASE}-{processor.debian}"
    with open_folder() as folder:
        options = (
            "--variant=apt",
            f"--include={INCLUDE}",
            f"--architectures={processor.debian}",
            "--skip=check/qemu",
        )
        run("mmdebstrap", *options, "bookworm", folder / "base.tar")
        run("docker", "import", "--platform", processor.platform, folder / "base.tar", name)
    yield name
    run("docker", "image", "rm", "--force", name)


def vendor(recipe: object, place: Path, processor: Processor = X86_64) -> Path:
    """Write all that a lock names, and uv, into `place`: what a text would fetch."""
    platform = ("--only-binary=:all:", "--platform", f"manylinux2014_{processor.machine}")
    uv = f"uv=={metadata.version('uv')}"
    run(ENVBUILDER, "cache", "vendor", recipe, place)
    pip = (ROOT / ".venv/bin/python", "-m", "pip", "download", "--quiet", "--no-deps")
    run(*pip, *platform, "--dest", place / "files", uv)
    return place


def build_dockerfile(folder: Path, base: str, recipe: object, processor: Processor = X86_64) -> Path:
    """An archive of the image that the recipe's printed Dockerfile builds."""
    vendored = vendor(recipe, folder / "vendored", processor)
    text = run(ENVBUILDER, "render", recipe, "--as", "dockerfile")
    dockerfile, archive = folder / "Dockerfile", folder / "image.tar"
    dockerfile.write_text(text)
    epoch = re.search(r"SOURCE_DATE_EPOCH=(\d+)", text)
    assert epoch
    run(
        "docker", "buildx", "build", "--quiet", "--file", dockerfile, "--network", "none", "--build-arg", f"BASE={base}",
        "--build-arg", f"SOURCE_DATE_EPOCH={epoch[1]}", "--build-context", f"artifacts={vendored / 'files'}",
        "--output", f"type=oci,dest={archive},rewrite-timestamp=true,compression=uncompressed",
        "--platform", processor.platform, vendored,
        timeout=1800,
    )  # fmt: skip
    return archive


def build_definition(
    folder: Path,
    base: str,
    recipe: object,
    vendored: Path,
    definition: Path | None = None,
    *,
    prefix: tuple[object, ...] = (),
) -> Path:
    """A SIF of the recipe's definition file, which is rendered unless it is given."""
    archive, sif = folder / "base.tar", folder / "rendered.sif"
    if definition is None:
        definition = folder / "rendered.def"
        definition.write_text(run(ENVBUILDER, "render", recipe, "--as", "apptainer"))
    run("docker", "save", "--output", archive, base)
    run("chmod", "-R", "a+rX", vendored, archive)
    run(
        *prefix, "apptainer", "build", "--fakeroot", *WITH_ZSTD,
        "--bind", f"{vendored / 'files'}:/artifacts:ro", "--bind", f"{vendored}:/context:ro",
        "--build-arg", "BOOTSTRAP=docker-archive", "--build-arg", f"BASE={archive}", sif, definition,
        env={"APPTAINER_CACHEDIR": str(folder / "cache"), "APPTAINER_TMPDIR": str(folder)}, cwd=folder, timeout=1800,
    )  # fmt: skip
    return sif


def not_below(folders: Collection[str], entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(
        entry for entry in entries if not any(f"{entry.path}/".startswith(f"{folder}/") for folder in folders)
    )


def need_equal(mine: tuple[Entry, ...], theirs: tuple[Entry, ...], *, ignore: Collection[str] = ()) -> None:
    """Every path alike but for the documented list, and each path of that list is one that there is."""
    left, right = (without_folder_times(not_below(ignore, entries)) for entries in (mine, theirs))
    differences = compare(left, right, ("build", "render"), without=DIFFERS)
    assert differences == (), "\n".join(map(str, differences))
    assert DIFFERS.keys() <= {entry.path for entry in mine}


def without_folder_times(entries: tuple[Entry, ...]) -> list[Entry]:
    """A tar of Docker's has no entry for the root itself."""
    return [replace(one, mtime=0) if one.kind is Kind.DIRECTORY else one for one in entries if one.path]
