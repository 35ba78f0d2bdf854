"""`matrix`: one recipe file for several environments, its variants.

Each combination of the lists' values is a variant, named after them: `a100@torch2.6.0-python3.12`. GPUs that exist only
beside an Arm processor, among others, make two of each: `both@amd64` and `both@arm64`. A variant has a lock, an image and a
SIF of its own. Its name serves wherever a recipe's does, `recipes/a100@torch2.6.0.yaml` as a path as well.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from envbuilder.core.models import read_node
from envbuilder.core.places import List, Map, Mistakes, PlacedNode
from envbuilder.core.processor import AARCH64, PROCESSORS
from envbuilder.recipe.fields import RecipeCode
from envbuilder.recipe.model import Matrix

MARK: Final = "@"
KEY: Final = "matrix"
GPUS: Final = "gpus"
# What stands before the value in a variant's name; of other keys the key.
_PREFIXES: Final = {"pytorch": "torch", GPUS: "", "base": ""}


def file_of(path: Path) -> tuple[Path, str]:
    """Return the recipe file of a path, and the variant that it names: a100@torch2.6.0.yaml → a100.yaml, torch2.6.0."""
    stem, _, variant = path.stem.partition(MARK)
    return path.with_name(f"{stem}{path.suffix}"), variant


def read_variants(root: PlacedNode, mistakes: Mistakes) -> dict[str, PlacedNode]:
    """Return name → effective recipe of each variant, none for a recipe that is one environment. Collects the mistakes in it."""
    variants = {
        variant: effective
        for name, node in _combinations(root, mistakes).items()
        for variant, effective in _by_processor(name, node)
    }
    return {name: node for name, node in variants.items() if name}


def _combinations(root: PlacedNode, mistakes: Mistakes) -> dict[str, PlacedNode]:
    """Return name → recipe for each combination of the matrix, the recipe without a name if it has none."""
    matrix = root.get(KEY)
    if matrix is None:
        return {"": root}
    if matrix.value == {}:
        mistakes.at(matrix, RecipeCode.MATRIX, "expected one or more keys, each with its values")
    if read_node(Matrix, matrix, mistakes) is None:
        return {}
    rest = {key: value for key, value in root.value.items() if key != KEY}
    for key in rest.keys() & matrix.value.keys():
        place, there = root.inner[key].key_where, matrix.inner[key].key_where
        message = f"`{key}` is in `{KEY}` as well: {there}"
        mistakes.add(RecipeCode.MATRIX, place, message, hint="leave out one of them")
    combinations: dict[str, PlacedNode] = {}
    for values in itertools.product(*(node.inner.values() for node in matrix.inner.values())):
        chosen = dict(zip(matrix.value, values, strict=True))
        name = "-".join(_word(key, node.value) for key, node in chosen.items())
        if name in combinations:
            mistakes.at(matrix, RecipeCode.MATRIX, f"two variants have the name `{name}`")
        places = {key: (matrix.inner[key].key_where, node.where) for key, node in chosen.items()}
        whole = rest | {key: _whole(key, node) for key, node in chosen.items()}
        combinations[name] = replace(root, value=Map(whole, root.value.places | places))
    return combinations


def _by_processor(name: str, root: PlacedNode) -> Iterator[tuple[str, PlacedNode]]:
    """Yield the recipe, or one for each processor if some of its GPUs exist only beside Arm and others do not."""
    gpus = root.get(GPUS)
    if gpus is None or not isinstance(gpus.value, List) or root.get("platform"):
        yield name, root
        return
    for processor in PROCESSORS:
        is_arm = processor is AARCH64
        nodes = [node for node in gpus.inner.values() if (node.value in AARCH64.gpus) is is_arm]
        value = List([node.value for node in nodes], [(node.key_where, node.where) for node in nodes])
        if len(nodes) == len(gpus.value):
            yield name, root
        elif nodes:
            word = "-".join(filter(None, (name, processor.debian)))
            yield word, replace(root, value=Map(root.value | {GPUS: value}, root.value.places))


def choose_variant(root: PlacedNode, variant: str, path: Path, mistakes: Mistakes) -> PlacedNode | None:
    """Return the effective recipe of a variant, or of a recipe that is one environment. None after collecting the mistake."""
    variants = read_variants(root, mistakes)
    place = root.get(KEY) or (root.get(GPUS) if variants else None)
    if place is None:
        if variant:
            message = f"there is no variant `{variant}`: the recipe has no `{KEY}`"
            mistakes.at(root, RecipeCode.MATRIX, message, hint=f"leave out `{MARK}{variant}`")
        return None if variant else root
    known = {f"{path.stem}{MARK}{name}": node for name, node in variants.items()}
    wanted = f"{path.stem}{MARK}{variant}"
    if known and wanted not in known:
        several = "this recipe stands for several environments"
        message = f"there is no variant `{wanted}`" if variant else several
        mistakes.at(place, RecipeCode.MATRIX, message, hint=f"name one of {', '.join(known)}")
    return known.get(wanted)


def _whole(key: str, node: PlacedNode) -> object:
    """Return the value of the key: a single GPU becomes a list."""
    is_single = key == GPUS and isinstance(node.value, str)
    return List([node.value], [(node.where, node.where)]) if is_single else node.value


def _word(key: str, value: str | list[str]) -> str:
    """pytorch: 2.6.0 → torch2.6.0; base: debian/trixie → trixie; gpus: [RTX 4090, A100] → rtx4090-a100"""
    texts = value if isinstance(value, list) else [value.rpartition("/")[2]]
    return _PREFIXES.get(key, key) + "-".join("".join(text.lower().split()) for text in texts)
