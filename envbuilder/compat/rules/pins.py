"""Rules on one pin at a time: does it exist, and does the suite have it."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from envbuilder.compat.context import Case
from envbuilder.compat.host_file import find_name
from envbuilder.compat.problem import Change, CheckCode, Fault, cite, closest, distance, either, is_ahead
from envbuilder.compat.tables.torch import version_key
from envbuilder.core.findings import Severity


def check_base(case: Case) -> Iterator[Fault]:
    row = case.suite
    if (row and row.buildable) or case.recipe.image:
        return
    names = [base.name for base in case.tables.bases]
    yield Fault(
        code=CheckCode.BASE,
        key="base",
        message=f"envbuilder cannot build on `{row.name}`"
        if row
        else f"no suite `{case.recipe.base}` is known",
        pins=("base",),
        advice=f"suites: {', '.join(names)}",
    )


def check_gpus(case: Case) -> Iterator[Fault]:
    names = tuple(case.tables.gpu)
    for index, name in enumerate(case.recipe.gpus):
        if name in case.tables.gpu:
            continue
        whole = find_name(name, names)
        found = closest(name, names)
        near = (whole, *found) if whole else found
        yield Fault(
            code=CheckCode.GPU,
            key=f"gpus[{index}]",
            message=f"no GPU `{name}` is known" + (f"; the closest is `{near[0]}`" if near else ""),
            moves=tuple((Change(key=f"gpus[{index}]", value=other),) for other in near),
            advice="" if near else f"GPUs: {', '.join(names)}",
        )


def check_arm_hosts(case: Case) -> Iterator[Fault]:
    for key, gpu in case.gpus:
        if gpu.arm_host:
            yield Fault(
                code=CheckCode.ARM_HOST,
                key=key,
                message=f"{gpu.name} sits beside an aarch64 processor, and envbuilder builds for x86-64",
                advice=f"what is built runs on other GPUs with {gpu.target} alone",
                source=cite(case.tables.gpus, gpu.source),
                severity=Severity.WARNING,
            )


def check_python(case: Case) -> Iterator[Fault]:
    row = case.suite
    if row and case.recipe.python != row.python:
        yield Fault(
            code=CheckCode.PYTHON,
            key="python",
            message=f"{row.name} has Python {row.python}, not {case.recipe.python}",
            pins=("python", "base"),
            source=cite(case.tables.distributions, row.source),
        )


def check_gcc(case: Case) -> Iterator[Fault]:
    row = case.suite
    if row and case.recipe.gcc not in row.gccs:
        yield Fault(
            code=CheckCode.GCC,
            key="gcc",
            message=f"{row.name} has gcc {either(row.gccs)}, not {case.recipe.gcc}",
            pins=("gcc", "base"),
            source=cite(case.tables.distributions, row.source),
        )


def check_libxcrypt(case: Case) -> Iterator[Fault]:
    row, pin = case.suite, case.recipe.libxcrypt
    if row and pin and not f"{row.libxcrypt}.".startswith(f"{pin}."):
        yield Fault(
            code=CheckCode.LIBXCRYPT,
            key="libxcrypt",
            message=f"{row.name} has libxcrypt {row.libxcrypt}, not {pin}",
            pins=("libxcrypt", "base"),
            source=cite(case.tables.distributions, row.source),
        )


def check_crypt_h(case: Case) -> Iterator[Fault]:
    """The pin is asked for even where libc6-dev brings the header by chance, as newer suites no longer do."""
    row = case.tables.python.get(case.recipe.python)
    if row and not case.recipe.libxcrypt and row.needs_crypt_h(case.python):
        yield Fault(
            code=CheckCode.CRYPT_H,
            key="libxcrypt",
            message=f"Python.h of Python {case.python} includes crypt.h, and the recipe does not pin libxcrypt, "
            "which brings it",
            pins=("libxcrypt", "python", "base"),
            source=cite(case.tables.pythons, row.source),
        )


def check_cuda(case: Case) -> Iterator[Fault]:
    """CUDA releases that do not exist, are too new to be known, or cannot be laid out."""
    asked, rows = case.recipe.cuda, case.tables.cudas.rows
    if not asked or asked in case.tables.toolkits or (case.base and case.base.toolkit(asked)):
        return
    age = f"{rows[-1].cuda}, read {case.tables.cudas.read}"
    if case.cuda:
        ready = sorted(case.tables.toolkits, key=version_key)
        yield Fault(
            code=CheckCode.TOOLKIT,
            key="cuda",
            message=f"CUDA {asked} cannot be laid out by this envbuilder; {either(ready)} can",
            pins=("cuda",),
        )
    elif is_ahead(asked, rows[-1].cuda):
        yield Fault(
            code=CheckCode.CUDA_NEWER,
            key="cuda",
            message=f"CUDA {asked} is newer than the tables ({age}): it is not checked",
            advice="`envbuilder tables refresh` brings newer rows; `lock` needs one that says how to lay it out",
            severity=Severity.WARNING,
        )
    else:
        near = min((row.cuda for row in rows), key=lambda known: distance(known, asked))
        yield Fault(
            code=CheckCode.CUDA,
            key="cuda",
            message=f"there is no CUDA {asked}; the closest is {near} (the tables go to {age})",
            pins=("cuda",),
        )


def check_torch(case: Case) -> Iterator[Fault]:
    if case.torch:
        return
    asked = case.recipe.pytorch
    versions = [row.version for row in case.tables.torches.rows]
    age = f"{versions[-1]}, read {case.tables.torches.read}"
    if is_ahead(asked, versions[-1]):
        yield Fault(
            code=CheckCode.TORCH_NEWER,
            key="pytorch",
            message=f"torch {asked} is newer than the tables ({age}): it is not checked",
            advice="`envbuilder tables refresh` brings newer rows",
            severity=Severity.WARNING,
        )
        return
    near = min(versions, key=lambda version: distance(version, asked))
    yield Fault(
        code=CheckCode.TORCH,
        key="pytorch",
        message=f"there is no torch {asked}; the closest is {near} (the tables go to {age})",
        pins=("pytorch",),
    )


def check_cuda_sources(case: Case) -> Iterator[Fault]:
    if case.recipe.cuda:
        return
    for index, extension in enumerate(case.recipe.extensions):
        for number, source in enumerate(extension.sources):
            if PurePosixPath(source).suffix == ".cu":
                yield Fault(
                    code=CheckCode.CUDA_SOURCE,
                    key=f"extensions[{index}].sources[{number}]",
                    message=f"`{source}` needs CUDA, and the recipe has none",
                    advice="add `cuda` and `gpus`, or leave this source out",
                )
