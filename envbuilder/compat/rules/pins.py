"""Rules on one pin at a time: does it exist, and does the suite have it."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from envbuilder.compat.context import CheckContext
from envbuilder.compat.host_file import find_name
from envbuilder.compat.problem import Change, CheckCode, Problem, cite, closest, distance, either, is_ahead
from envbuilder.compat.tables.torch import version_key
from envbuilder.core.findings import Severity


def check_base(context: CheckContext) -> Iterator[Problem]:
    row = context.suite
    if (row and row.buildable) or context.recipe.image:
        return
    names = [base.name for base in context.tables.bases]
    yield Problem(
        code=CheckCode.BASE,
        key="base",
        message=f"envbuilder cannot build on `{row.name}`"
        if row
        else f"no suite `{context.recipe.base}` is known",
        pins=("base",),
        advice=f"suites: {', '.join(names)}",
    )


def check_gpus(context: CheckContext) -> Iterator[Problem]:
    names = tuple(context.tables.gpu)
    for index, name in enumerate(context.recipe.gpus):
        if name in context.tables.gpu:
            continue
        whole = find_name(name, names)
        found = closest(name, names)
        near = (whole, *found) if whole else found
        yield Problem(
            code=CheckCode.GPU,
            key=f"gpus[{index}]",
            message=f"no GPU `{name}` is known" + (f"; the closest is `{near[0]}`" if near else ""),
            moves=tuple((Change(key=f"gpus[{index}]", value=other),) for other in near),
            advice="" if near else f"GPUs: {', '.join(names)}",
        )


def check_arm_hosts(context: CheckContext) -> Iterator[Problem]:
    for key, gpu in context.gpus:
        if gpu.arm_host:
            yield Problem(
                code=CheckCode.ARM_HOST,
                key=key,
                message=f"{gpu.name} sits beside an aarch64 processor, and envbuilder builds for x86-64",
                advice=f"what is built runs on other GPUs with {gpu.target} alone",
                source=cite(context.tables.gpus, gpu.source),
                severity=Severity.WARNING,
            )


def check_python(context: CheckContext) -> Iterator[Problem]:
    row = context.suite
    if row and context.recipe.python != row.python:
        yield Problem(
            code=CheckCode.PYTHON,
            key="python",
            message=f"{row.name} has Python {row.python}, not {context.recipe.python}",
            pins=("python", "base"),
            source=cite(context.tables.distributions, row.source),
        )


def check_gcc(context: CheckContext) -> Iterator[Problem]:
    row = context.suite
    if row and context.recipe.gcc not in row.gccs:
        yield Problem(
            code=CheckCode.GCC,
            key="gcc",
            message=f"{row.name} has gcc {either(row.gccs)}, not {context.recipe.gcc}",
            pins=("gcc", "base"),
            source=cite(context.tables.distributions, row.source),
        )


def check_libxcrypt(context: CheckContext) -> Iterator[Problem]:
    row, pin = context.suite, context.recipe.libxcrypt
    if row and pin and not f"{row.libxcrypt}.".startswith(f"{pin}."):
        yield Problem(
            code=CheckCode.LIBXCRYPT,
            key="libxcrypt",
            message=f"{row.name} has libxcrypt {row.libxcrypt}, not {pin}",
            pins=("libxcrypt", "base"),
            source=cite(context.tables.distributions, row.source),
        )


def check_crypt_h(context: CheckContext) -> Iterator[Problem]:
    """The pin is asked for even where libc6-dev brings the header by chance, as newer suites no longer do."""
    row = context.tables.python.get(context.recipe.python)
    if row and not context.recipe.libxcrypt and row.needs_crypt_h(context.python):
        yield Problem(
            code=CheckCode.CRYPT_H,
            key="libxcrypt",
            message=f"Python.h of Python {context.python} includes crypt.h, and the recipe does not pin libxcrypt, "
            "which brings it",
            pins=("libxcrypt", "python", "base"),
            source=cite(context.tables.pythons, row.source),
        )


def check_cuda(context: CheckContext) -> Iterator[Problem]:
    """CUDA releases that do not exist, are too new to be known, or cannot be laid out."""
    asked, rows = context.recipe.cuda, context.tables.cudas.rows
    if not asked or asked in context.tables.toolkits or (context.base and context.base.toolkit(asked)):
        return
    age = f"{rows[-1].cuda}, read {context.tables.cudas.read}"
    if context.cuda:
        ready = sorted(context.tables.toolkits, key=version_key)
        yield Problem(
            code=CheckCode.TOOLKIT,
            key="cuda",
            message=f"CUDA {asked} cannot be laid out by this envbuilder; {either(ready)} can",
            pins=("cuda",),
        )
    elif is_ahead(asked, rows[-1].cuda):
        yield Problem(
            code=CheckCode.CUDA_NEWER,
            key="cuda",
            message=f"CUDA {asked} is newer than the tables ({age}): it is not checked",
            advice="`envbuilder tables refresh` brings newer rows; `lock` needs one that says how to lay it out",
            severity=Severity.WARNING,
        )
    else:
        near = min((row.cuda for row in rows), key=lambda known: distance(known, asked))
        yield Problem(
            code=CheckCode.CUDA,
            key="cuda",
            message=f"there is no CUDA {asked}; the closest is {near} (the tables go to {age})",
            pins=("cuda",),
        )


def check_torch(context: CheckContext) -> Iterator[Problem]:
    if context.torch:
        return
    asked = context.recipe.pytorch
    versions = [row.version for row in context.tables.torches.rows]
    age = f"{versions[-1]}, read {context.tables.torches.read}"
    if is_ahead(asked, versions[-1]):
        yield Problem(
            code=CheckCode.TORCH_NEWER,
            key="pytorch",
            message=f"torch {asked} is newer than the tables ({age}): it is not checked",
            advice="`envbuilder tables refresh` brings newer rows",
            severity=Severity.WARNING,
        )
        return
    near = min(versions, key=lambda version: distance(version, asked))
    yield Problem(
        code=CheckCode.TORCH,
        key="pytorch",
        message=f"there is no torch {asked}; the closest is {near} (the tables go to {age})",
        pins=("pytorch",),
    )


def check_cuda_sources(context: CheckContext) -> Iterator[Problem]:
    if context.recipe.cuda:
        return
    for index, extension in enumerate(context.recipe.extensions):
        for number, source in enumerate(extension.sources):
            if PurePosixPath(source).suffix == ".cu":
                yield Problem(
                    code=CheckCode.CUDA_SOURCE,
                    key=f"extensions[{index}].sources[{number}]",
                    message=f"`{source}` needs CUDA, and the recipe has none",
                    advice="add `cuda` and `gpus`, or leave this source out",
                )
