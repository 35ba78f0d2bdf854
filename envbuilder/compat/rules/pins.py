"""Rules on one pin at a time: does it exist, and does the suite have it."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from envbuilder.compat.context import CheckCode, CheckContext, PinChange, Problem, distance, is_ahead, warning
from envbuilder.compat.host_file import find_name
from envbuilder.compat.image_facts import is_version
from envbuilder.compat.tables.table import Row, Table, cite, version_key
from envbuilder.core.processor import X86_64
from envbuilder.core.spelling import either, equally_near

FEW: Final = 5  # of the newest versions
# What is possible for a processor other than x86-64.
_TODAY: Final = "on x86-64, `build` makes it with an emulator (qemu); `--runner buildkit` is not possible"


def check_base(context: CheckContext) -> Iterator[Problem]:
    if context.suite is None and not context.recipe.image:
        asked, suites = context.recipe.base, context.tables.distributions
        # ubuntu/22.04 is ubuntu/jammy.
        same = [suite.name for suite in suites.rows if asked == f"{suite.family}/{suite.release}"]
        message = f"no suite `{asked}` is known" + (f"; the closest is `{same[0]}`" if same else "")
        advice = f"suites: {', '.join(suites.by_name)}"
        moves = tuple((PinChange("base", name),) for name in same)
        pins = () if same else ("base",)
        yield Problem(CheckCode.BASE, "base", message, moves=moves, pins=pins, advice=advice)


def check_gpus(context: CheckContext) -> Iterator[Problem]:
    names = tuple(context.tables.gpus.by_name)
    for index, name in enumerate(context.recipe.gpus):
        key = f"gpus[{index}]"
        refused = context.tables.refused_gpus.by_name.get(name)
        if refused:
            message = f"{name} is refused: {refused.refused}"
            advice = "NVIDIA's images of JetPack are made for it"
            yield Problem(CheckCode.GPU_REFUSED, key, message, advice=advice, source=cite(refused.source))
        if name in names or refused:
            continue
        whole = find_name(name, names)
        others = tuple(other for other in names if other not in context.recipe.gpus)
        near = (whole,) if whole else equally_near(name, others)
        message = f"no GPU `{name}` is known"
        if near:
            closest = either([f"`{other}`" for other in near], "and")
            message += f"; the closest {'is' if len(near) == 1 else 'are'} {closest}"
        moves = tuple((PinChange(key, other),) for other in near)
        advice = "" if near else f"GPUs: {', '.join(names)}"
        yield Problem(CheckCode.GPU, key, message, moves=moves, are_equal=True, advice=advice)


def check_platform(context: CheckContext) -> Iterator[Problem]:
    """A GPU that exists only beside Arm is in no recipe for another processor, and no base image is for Arm."""
    arm = [gpu for _, gpu in context.gpus if gpu.arm_host]
    platform = context.recipe.platform
    if context.recipe.image and context.processor is not X86_64:
        message = f"a base image for {context.processor.platform} is not possible yet"
        advice = "take a suite such as `base: debian/bookworm`"
        yield Problem(CheckCode.PLATFORM, "base.image", message, advice=advice)
    if arm and platform == X86_64.platform:
        gpu = arm[0]
        message = f"{gpu.name} exists only beside an Arm processor, and the recipe is for {platform}"
        advice, source = "leave out `platform`", cite(gpu.source)
        yield Problem(CheckCode.PLATFORM, "platform", message, advice=advice, source=source)


def check_processor(context: CheckContext) -> Iterator[Problem]:
    """Say once what is possible for a recipe that is not for x86-64."""
    if context.processor is X86_64:
        return
    key, why, source = next(
        ((key, f"{gpu.name} sits beside", cite(gpu.source)) for key, gpu in context.gpus if gpu.arm_host),
        ("platform", "the recipe is for", ""),
    )
    message = f"{why} a {context.processor.title} processor: {_TODAY}"
    yield warning(CheckCode.ARM_HOST, key, message, source=source)


def check_suite(context: CheckContext) -> Iterator[Problem]:
    """The suite has one Python, some gccs and one libxcrypt. Other Pythons are standalone builds."""
    row, recipe = context.suite, context.recipe
    if row is None:
        return
    source = cite(row.source)
    if recipe.python != row.python and context.standalone is None:
        others = sorted(context.tables.standalones.by_name, key=version_key)
        message = f"{row.name} has Python {row.python}, and there is no standalone build of {recipe.python}, but of {either(others, 'and')}"
        yield Problem(CheckCode.PYTHON, "python", message, pins=("python", "base"), source=source)
    if recipe.gcc not in row.gccs:
        message = f"{row.name} has gcc {either(row.gccs)}, not {recipe.gcc}"
        yield Problem(CheckCode.GCC, "gcc", message, pins=("gcc", "base"), source=source)
    if recipe.libxcrypt and not f"{row.libxcrypt}.".startswith(f"{recipe.libxcrypt}."):
        message = f"{row.name} has libxcrypt {row.libxcrypt}, not {recipe.libxcrypt}"
        yield Problem(CheckCode.LIBXCRYPT, "libxcrypt", message, pins=("libxcrypt", "base"), source=source)


def check_crypt_h(context: CheckContext) -> Iterator[Problem]:
    """The pin is required even if the suite's libc6-dev brings the header: that of newer suites does not."""
    row = context.tables.pythons.by_name.get(context.recipe.python)
    if row and not context.recipe.libxcrypt and row.needs_crypt_h(context.python):
        message = (
            f"Python.h of Python {context.python} includes crypt.h, and the recipe does not pin libxcrypt, "
            "which brings it"
        )
        pins = ("libxcrypt", "python", "base")
        yield Problem(CheckCode.CRYPT_H, "libxcrypt", message, pins=pins, source=cite(row.source))


def check_cuda(context: CheckContext) -> Iterator[Problem]:
    """CUDA releases that do not exist, are too new to be known, or that no source has."""
    recipe, tables = context.recipe, context.tables
    asked, minor = recipe.cuda, recipe.cuda_minor
    if not asked or context.has_toolkit(asked):
        return
    if context.base and context.base.toolkit(asked):
        return
    releases = [release for release in tables.releases if is_version(release, minor)]
    if context.cuda is None:
        codes = (CheckCode.CUDA, CheckCode.CUDA_NEWER)
        yield _unknown("CUDA", PinChange("cuda", minor), tables.cudas, codes)
    elif recipe.image and context.base is None:
        return  # the image may have it, and that `lock` has not read it yet is a warning of its own
    elif any(is_version(release, asked) for release in tables.apt_releases):
        message = f"CUDA {asked} is in NVIDIA's apt repositories alone, and the recipe has no `apt_sources`"
        advice = "or add `apt_sources: [nvidia/ubuntu2004]`; its toolkit serves on any base"
        yield Problem(CheckCode.TOOLKIT, "cuda", message, pins=("cuda",), advice=advice)
    elif not releases:
        near = sorted(tables.toolkits, key=lambda version: distance(version, minor))[:2]
        nearest = either(sorted(near, key=version_key), "and")
        message = f"no source of packages has CUDA {asked}; the nearest that one has are {nearest}"
        advice = "or take an image that has it"
        yield Problem(CheckCode.TOOLKIT, "cuda", message, pins=("cuda",), advice=advice)
    elif version_key(asked) > version_key(releases[-1]):
        message = f"CUDA {asked} is newer than {releases[-1]}, the newest known: `lock` asks whether a source has it"
        yield warning(CheckCode.CUDA_NEWER, "cuda", message)
    else:
        message = f"no source of packages has CUDA {asked}; of {minor} there is {either(releases, 'and')}"
        yield Problem(CheckCode.TOOLKIT, "cuda", message, moves=((PinChange("cuda", minor),),))


def check_torch(context: CheckContext) -> Iterator[Problem]:
    asked = context.recipe.pytorch
    if context.torch is None and asked and asked not in context.tables.torches.by_name:
        pin = PinChange("pytorch", asked)
        codes = (CheckCode.TORCH, CheckCode.TORCH_NEWER)
        yield _unknown("torch", pin, context.tables.torches, codes)


def _unknown(name: str, pin: PinChange, table: Table[Row], codes: tuple[CheckCode, CheckCode]) -> Problem:
    """Return an error for a version that never was or is older than the table, a warning for a newer one."""
    versions = tuple(table.by_name)
    advice = f"the newest on {table.read} were {either(versions[: -FEW - 1 : -1], 'and')}"
    if is_ahead(pin.value, versions[-1]):
        message = f"{name} {pin.value} is newer than all that are known here: it is not checked, and `lock` asks for it"
        return warning(codes[1], pin.key, message, advice=advice)
    near = min(versions, key=lambda version: distance(version, pin.value))
    message = f"there is no {name} {pin.value}; the closest is {near}"
    if version_key(pin.value) < version_key(versions[0]):
        message = f"{name} {pin.value} is older than {versions[0]}, the oldest possible"
    return Problem(codes[0], pin.key, message, pins=(pin.key,), advice=advice)


def check_cuda_sources(context: CheckContext) -> Iterator[Problem]:
    for index, extension in enumerate(() if context.recipe.cuda else context.recipe.extensions):
        for number, source in enumerate(extension.sources):
            if PurePosixPath(source).suffix == ".cu":
                key = f"extensions[{index}].sources[{number}]"
                message = f"`{source}` needs CUDA, and the recipe has none"
                advice = "add `cuda` and `gpus`, or leave this source out"
                yield Problem(CheckCode.CUDA_SOURCE, key, message, advice=advice)
