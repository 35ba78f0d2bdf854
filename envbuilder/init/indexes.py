"""Decide where packages with CUDA code come from: the indexes and pages that a project names, as far as their packages are known."""

import re
from collections.abc import Collection
from dataclasses import replace

from envbuilder.compat.tables.cuda import CudaPackage, load_cuda_packages
from envbuilder.core.places import shown
from envbuilder.core.plain import GIVE_BY
from envbuilder.core.text.redact import without_credentials
from envbuilder.init.build_tools import requirement_name
from envbuilder.init.meanings import choices_of
from envbuilder.init.requests import CONFIGURED, Requests
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.packages import build_of
from envbuilder.recipe.wheel_sources import ADDRESS, TORCHES, WheelIndex, index_entry, name_after

# The end of a package's name that says for which CUDA it is: spconv-cu120, cupy-cuda12x.
_BUILT_FOR = re.compile(r"-cu(?:da)?(1\d)[\dx]$")


def take_indexes(recipe: Recipe, requests: Requests) -> Recipe:
    """Return the recipe with `indexes` for the addresses whose packages are known, and report each other address.

    A name that is another project's on the package index is left out unless a page has it.
    """
    table, wanted = load_cuda_packages(), requests.packages | requests.misnamed
    indexes: dict[str, WheelIndex] = {}
    listed = set(requests.by_lock)
    strange = _take_homes(requests, indexes)
    listed.update(name for index in indexes.values() for name in index.packages)
    for option, address, where in requests.indexes:
        if any(address in (index.url, index.find_links) for index in indexes.values()):
            continue
        rows = [row for row in table.rows if row.package in wanted.keys() - listed and row.is_at(address)]
        names = tuple(row.package for row in rows if _is_for(row, address, recipe))
        key = "find_links" if option == "--find-links" else "url"
        if names and option != "--index-url" and re.fullmatch(ADDRESS, address):
            name = _free_name(address, indexes)
            indexes[name] = WheelIndex(name=name, packages=names, **{key: address})
            listed.update(names)
            continue
        others = ", ".join(row.package for row in rows)
        why = f"its wheels of {others} are for another torch or CUDA than the recipe's"
        entry = index_entry(without_credentials(address), is_page=key == "find_links")
        hint = f"`indexes: [{entry}]` takes the packages that it names from there"
        requests.leave(where, f"{option} {address}", why if others else CONFIGURED, hint=hint)
    for name, request in requests.misnamed.items():
        if name not in listed | strange:
            row, answers = table.by_name[name], "|".join(choices_of(name, requests))
            hint = (
                f"{row.advice(recipe.pytorch, build_of(recipe.cuda))}; `--meaning {name}={answers}` decides"
            )
            requests.leave(request.where, request.text, row.wrong, hint=hint)
    for name, request in requests.packages.items():
        built = _BUILT_FOR.search(name)
        if built and recipe.cuda and built[1] != recipe.cuda.partition(".")[0]:
            message = f"`{name}` is for CUDA {built[1]}, and the recipe has {recipe.cuda}"
            requests.note(
                request.where, message, hint=f"take `{name[: built.start()]}-cu…` of CUDA {recipe.cuda}"
            )
    named = (request.text for name, request in sorted(requests.misnamed.items()) if name in listed)
    packages = (text for text in recipe.packages if requirement_name(text) not in strange)
    return replace(recipe, packages=(*packages, *named), indexes=tuple(indexes.values()))


def _take_homes(requests: Requests, indexes: dict[str, WheelIndex]) -> set[str]:
    """Add the indexes that files name for single packages. Return the packages of those that a recipe cannot name."""
    strange, wanted = set[str](), requests.packages | requests.misnamed
    for name, (given, where) in requests.homes.items():
        address = without_credentials(given)
        if name in TORCHES:
            requests.leave(where, f"{address} of {name}", "PyTorch's own index has the builds")
        elif name in wanted and re.fullmatch(ADDRESS, address):
            if address != given:
                requests.note(where, f"{shown(address)} is taken without its password or token", hint=GIVE_BY)
            known = next((index for index in indexes.values() if index.url == address), None)
            key = known.name if known else _free_name(address, indexes)
            names = (*(known.packages if known else ()), name)
            indexes[key] = WheelIndex(name=key, packages=names, url=address)
        elif name in wanted:
            why = f"it comes from {shown(address)}, which is not https://HOST/PATH"
            requests.leave(where, wanted[name].text, why)
            strange.add(name)
    return strange


def _free_name(address: str, indexes: Collection[str]) -> str:
    """Return a name for an index that no other one has."""
    stem = name_after(address)
    return f"{stem}-{len(indexes) + 1}" if stem in indexes else stem


def _is_for(row: CudaPackage, address: str, recipe: Recipe) -> bool:
    """Return whether the address is that of wheels for the recipe's torch. One that names no torch has them for each."""
    places = row.addresses(recipe.pytorch, build_of(recipe.cuda))
    plain = address.replace("%2B", "+").rstrip("/")
    return any(plain == place.rstrip("/") for place, _ in places) or not re.search(r"torch|cu\d|pt\d", plain)
