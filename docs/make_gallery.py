"""Make the page `docs/reference/gallery.md` from the recipes, their locks and what `bench/results` records of them."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from docs.make_reference import made, table
from envbuilder.core.cache import sha256_file
from envbuilder.lock.file import load_lock
from envbuilder.lock.model import lock_artifacts
from envbuilder.recipe.load import list_recipes, load
from envbuilder.recipe.model import Recipe

ROOT: Final = Path(__file__).parents[1]
RECIPES: Final = ROOT / "recipes"
RESULTS: Final = ROOT / "bench/results"
HEAD: Final = """\
Take an environment as it is: each recipe comes with its lock. In a clone, leave out `init`.

`not yet` says that this very environment has not run on a real GPU. What did run on one stands [below](#on-a-real-gpu).
"""
# `bench/gallery` writes such a row of each recipe that it has built.
_BUILT: Final = r"^\| `{}` \| ([\d-]+) \| {} \| (\w+) \| (\w+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|"
_SIF: Final = r"`{}`: a SIF of ([\d.]+ GB)(?s:.*?)^- date: ([\d-]+)"
_SAME: Final = (
    r"^`{}`(?: again)?, ([\d-]+), commit [^|]*\| (\d) builds with .*\n.*\n"
    r"\| envbuilder, OCI manifest \| 1 \| (\w+).*\n\| envbuilder, SIF \| 1 \| (\w+)"
)


def page() -> str:
    recipes = [load(RECIPES / f"{name}.yaml") for name in list_recipes(RECIPES)]
    tested = _last_sentences([recipe.name for recipe in recipes])
    lines = [*made("Gallery", "the recipes, their locks and `bench/results`"), HEAD]
    rows = [[f"[`{recipe.name}`](#{recipe.name})", recipe.summary, _on_gpu(recipe)] for recipe in recipes]
    lines += table(("recipe", "what it is", "on a real GPU"), rows)
    for recipe in recipes:
        lines += [f"## {recipe.name}", "", recipe.summary, "", *_facts(recipe)]
        recorded = "what they [record](#release-tests)" if recipe.name in tested else "no run is recorded"
        lines += [f"- **Release tests**: {recorded}.", "", "```sh"]
        lines += [f"envbuilder init --example {recipe.name} && envbuilder build {recipe.name}", "```", ""]
    lines += ["## Release tests", "", "From `bench/results/release.md`:", ""]
    lines += [f"- {words}" for words in dict.fromkeys(tested.values())]
    return "\n".join(
        [*lines, "", "## On a real GPU", "", "From `bench/results/gpu.md`:", "", *_on_gpus(), ""]
    )


def _facts(recipe: Recipe) -> Iterator[str]:
    """Yield the recipe's pins, its lock, and the sizes and digests that were measured."""
    path = f"recipes/{recipe.name}.lock"
    lock, digest = load_lock(ROOT / path), sha256_file(ROOT / path)
    pins = {
        "GPU": ", ".join(recipe.gpus), "base": recipe.base or recipe.image, "Python": recipe.python, "gcc": recipe.gcc,
        "CUDA": recipe.cuda, "torch": recipe.pytorch, "extensions": ", ".join(f"`{item.name}`" for item in recipe.extensions),
    }  # fmt: skip
    yield f"- **Pins**: {', '.join(f'{key} {value}' for key, value in pins.items() if value)}; `{lock.platform}`."
    yield (
        f"- **Lock**: of {datetime.fromtimestamp(lock.epoch, UTC).date()}, {len(lock.debs)} .debs and {len(lock.wheels)} Python "
        f"packages; {sum(file.size for file in lock_artifacts(lock)) / 1e9:.2f} GB to fetch; `{path}` has the sha256 "
        f"`{digest}`."
    )
    built = re.search(_BUILT.format(recipe.name, digest[:12]), _result("gallery.md"), re.MULTILINE)
    if built:  # a row of an earlier lock says nothing about this one
        day, image, sif, size, files, paths = built.groups()
        tested = "; its tests passed in the SIF" if recipe.tests else ""
        yield (
            f"- **Built** from this lock on {day}: a SIF of {size} GB with {files} GB of files, `{sif}`, and the image "
            f"`sha256:{image}`, the same {int(paths):,} paths in both{tested} (`bench/results/gallery.md`)."
        )
    for name in sorted(file.name for file in RESULTS.glob("travel*.md")):
        for size, day in re.findall(_SIF.format(recipe.name), _result(name), re.MULTILINE):
            yield f"- **SIF**: {size} on {day} (`bench/results/{name}`)."
    same = re.findall(_SAME.format(recipe.name), _result("reproducible.md"), re.MULTILINE)
    for day, count, image, sif in same[-1:]:
        yield (
            f"- **Same bytes**: {count} builds in unlike conditions gave one image, `{image}…`, and one SIF, `{sif}…`, on {day} "
            "(`bench/results/reproducible.md`)."
        )


def _result(name: str) -> str:
    return (RESULTS / name).read_text(encoding="utf-8")


def _last_sentences(names: list[str]) -> dict[str, str]:
    """Return the last sentence about each recipe in the record of the release tests."""
    paragraphs = re.split(r"\n\n|\n(?=- )", _result("release.md"))
    plain = [" ".join(part.split()).removeprefix("- ") for part in paragraphs if not part.startswith("|")]
    sentences = [words for part in plain for words in re.split(r"(?<=\.) (?=[A-Z`])", part)]
    return {name: words for words in sentences for name in names if f"`{name}`" in words}


def _on_gpu(recipe: Recipe) -> str:
    """Return whether `bench/gpu` ran with the recipe's SIF, which it names by its file."""
    ran = f" {recipe.name}.sif: PyTorch" in _result("gpu.md")
    return "yes" if ran else "not yet" if recipe.gpus else "-"


def _on_gpus() -> Iterator[str]:
    """Yield a line for each series of trials: its title, how many there were, and on what."""
    for part in re.split(r"^# ", _result("gpu.md"), flags=re.MULTILINE)[1:]:
        title, machine = part.split("\n\n")[:2]
        count = len(re.findall(r"^\|(?!:)", part, re.MULTILINE)) - len(
            re.findall(r"^\|:", part, re.MULTILINE)
        )
        yield f"- **{title}**, {count} rows: {' '.join(machine.split())}"
