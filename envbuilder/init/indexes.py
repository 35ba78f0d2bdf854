"""Decide where packages with CUDA code come from: the indexes and pages that a project names, as far as their packages are known."""

import re
from dataclasses import replace

from envbuilder.compat.tables.cuda import CudaPackage, load_cuda_packages
from envbuilder.core.text.redact import without_credentials
from envbuilder.init.requests import CONFIGURED, Requests
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.packages import build_of
from envbuilder.recipe.wheel_sources import (
    IndexFile,
    WheelIndex,
    index_entry,
    is_address,
    make_index,
    name_after,
)


def take_indexes(recipe: Recipe, requests: Requests) -> Recipe:
    """Return the recipe with `indexes` for the addresses whose packages are known, and report each other address.

    A package that would be compiled comes from its project's page if that is for the recipe's torch. A name that is another
    project's on the package index is left out unless a page has it.
    """
    table, wanted = load_cuda_packages(), {*requests.packages, *requests.misnamed, *requests.compiled}
    indexes: dict[str, WheelIndex] = {}
    listed: set[str] = set()
    for option, address, where in requests.indexes:
        rows = [row for row in table.rows if row.package in wanted and row.is_at(address)]
        names = [row.package for row in rows if row.package not in listed and _is_for(row, address, recipe)]
        is_page = option == "--find-links"
        if names and option != "--index-url" and is_address(address):
            listed.update(names)
            stem = name_after(address)
            name = f"{stem}-{len(indexes) + 1}" if stem in indexes else stem
            place = {"find_links": address} if is_page else {"url": address}
            indexes[name] = make_index(IndexFile(name=name, packages=tuple(names), **place))
            continue
        others = ", ".join(row.package for row in rows if row.package not in listed)
        why = (
            f"its wheels of {others} are for another torch or CUDA than the recipe's"
            if others
            else CONFIGURED
        )
        entry = index_entry(without_credentials(address), is_page=is_page)
        hint = f"`indexes: [{entry}]` takes the packages that it names from there"
        requests.leave(where, f"{option} {address}", why, hint=hint)
    more = [requests.misnamed[name].text for name in listed & requests.misnamed.keys()]
    for name in requests.misnamed.keys() - listed:
        row, request = table.by_name[name], requests.misnamed[name]
        requests.leave(
            request.where, request.text, row.wrong, hint=row.advice(recipe.pytorch, build_of(recipe.cuda))
        )
    compiled = [extension for extension in recipe.extensions if _package(extension) in listed]
    for extension in compiled:
        more.append(requests.compiled[_package(extension)])
        mark = f"`{_package(extension)}=={extension.sdist.partition('==')[2]}` is an extension"
        requests.left = [finding for finding in requests.left if mark not in finding.message]
    return replace(
        recipe, packages=(*recipe.packages, *sorted(more)), indexes=tuple(indexes.values()),
        extensions=tuple(extension for extension in recipe.extensions if extension not in compiled),
    )  # fmt: skip


def _is_for(row: CudaPackage, address: str, recipe: Recipe) -> bool:
    """Return whether the address is that of wheels for the recipe's torch. One that names no torch has them for each."""
    places = row.addresses(recipe.pytorch, build_of(recipe.cuda))
    plain = address.replace("%2B", "+").rstrip("/")
    return any(plain == place.rstrip("/") for place, _ in places) or not re.search(r"torch|cu\d|pt\d", plain)


def _package(extension: Extension) -> str:
    return extension.sdist.partition("==")[0].replace("_", "-")
