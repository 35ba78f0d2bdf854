"""Rules on a recipe's base image, by its facts: what it lacks of the recipe's pins, and what is in excess.

What an image lacks is no problem if the packages of its own suite bring it. An image for another processor
or with another C library gets only that finding.
"""

import operator
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from envbuilder.compat.context import CheckCode, CheckContext, PinChange, Problem, demands, warning
from envbuilder.compat.image_facts import (
    PLATFORM,
    Base,
    Fact,
    Name,
    is_foreign,
    is_version,
    other_machine,
    suite_of,
)
from envbuilder.compat.rules.driver import known_gpus
from envbuilder.compat.tables.distribution import Distribution
from envbuilder.compat.tables.table import version_key
from envbuilder.core.spelling import either

_CONDITION: Final = re.compile(r"(cuda|driver|arch|brand)(=|!=|<=|>=|<|>)([A-Za-z0-9.]+)")
_SIGNS: Final = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def check_image(context: CheckContext) -> Iterator[Problem]:
    """The image was read, is for this processor, has glibc, and is of a known distribution."""
    base, key = context.base, "base.image"
    if base is None:
        if context.recipe.image:
            image = context.recipe.image
            message = f"`lock` has not read the image `{image}` yet, so its contents are not checked"
            advice = f"`envbuilder lock {context.recipe.name}` does"
            yield warning(CheckCode.BASE_UNSEEN, key, message, advice=advice)
    elif fact := other_machine(base):
        machine = fact.value or "no processor that it names"
        message = f"the base is for {machine}, and envbuilder builds for {PLATFORM}"
        advice = f"take an image that has linux/{PLATFORM}"
        yield Problem(CheckCode.BASE_FOREIGN, key, message, advice=advice, source=fact.source)
    elif base.first(Name.GLIBC) is None:
        message = "the base has no C library: it holds no distribution that programs could run in"
        if musl := base.first(Name.MUSL):
            message = "the C library of the base is musl, and PyTorch's wheels are for glibc"
        advice = "take an image of a distribution with glibc, as Debian, Ubuntu and RHEL are"
        yield Problem(CheckCode.BASE_LIBC, key, message, advice=advice, source=musl.source if musl else "")
    elif not base.distribution:
        message = "the base does not say which distribution it is (no `ID` in /etc/os-release), so nothing can be added to it"
        advice = "it serves where it has the compiler and the Python that the recipe pins"
        yield warning(CheckCode.BASE_OS, key, message, advice=advice)


def check_gcc(context: CheckContext) -> Iterator[Problem]:
    base, pin = _fit(context), context.recipe.gcc
    if base is None:
        return
    suite, fact, plain = _suite(context), base.gcc(pin), base.first(Name.PLAIN_GCC)
    lone = base.value(Name.GCC)
    has = _listing("gcc", base.gccs) or (f"gcc {lone} without g++" if lone else "no gcc")
    if fact is None and not (suite and pin in suite.gccs):
        why = _reason(base, suite, "gcc", suite.gccs if suite else ())
        message, advice = f"the base has {has}, not gcc {pin}; {why}", f"or take a base that has gcc {pin}"
        yield Problem(CheckCode.GCC, "gcc", message, pins=("gcc",), advice=advice)
    elif base.gccs and (fact is None or (plain and not is_version(plain.value, pin))):
        origin = f"that of {suite.name} is put beside" if fact is None and suite else "both are there"
        message = f"the base has {has}, and the recipe asks for gcc {pin}: {origin}, and `gcc` means {pin} in the environment"
        yield warning(CheckCode.GCC_BESIDE, "gcc", message, pins=("gcc",))


def check_python(context: CheckContext) -> Iterator[Problem]:
    base, pin = _fit(context), context.recipe.python
    if base is None:
        return
    suite, fact = _suite(context), base.python(pin)
    is_suites = suite is not None and suite.python == pin
    if fact is None and not is_suites and context.standalone is None:
        has = _listing("Python", base.pythons) or "no Python"
        why = _reason(base, suite, "Python", (suite.python,) if suite else ())
        message = f"the base has {has}, not Python {pin}; {why}, and there is no standalone build of {pin}"
        advice = f"or take a base that has Python {pin}"
        yield Problem(CheckCode.PYTHON, "python", message, pins=("python",), advice=advice)
    elif fact and context.recipe.extensions and not base.has_headers(pin):
        if is_suites and fact.path.startswith("/usr/bin/"):
            return  # the suite's package brings them
        needs = "without Python.h, which the recipe's extensions need"
        message = f"the base has Python {fact.value} ({fact.path}) {needs}"
        advice = "take a base with the development files of that Python, as `-devel` images have"
        yield Problem(CheckCode.BASE_PARTS, "python", message, advice=advice)


def check_libxcrypt(context: CheckContext) -> Iterator[Problem]:
    base, pin, suite = _fit(context), context.recipe.libxcrypt, _suite(context)
    if base is None or not pin:
        return
    fact = base.first(Name.LIBXCRYPT)
    version = fact.value if fact else suite.libxcrypt if suite else ""
    if not is_version(version, pin) and not (version.count(".") == 1 and is_version(pin, version)):
        place = f" ({fact.path})" if fact else ""
        message = f"the base has {f'libxcrypt {version}{place}' if version else 'no libxcrypt'}, not {pin}"
        advice = "" if version else "leave the pin out, or take a base that has it"
        source = fact.source if fact else ""
        pins = ("libxcrypt",) if version else ()
        yield Problem(CheckCode.LIBXCRYPT, "libxcrypt", message, pins=pins, advice=advice, source=source)
    python = context.tables.pythons.by_name.get(context.recipe.python)
    if suite is None and not base.first(Name.CRYPT_H) and python and python.needs_crypt_h(context.python):
        message = f"Python.h of Python {context.python} includes crypt.h, and the base does not have it"
        advice = "take a base with libxcrypt's development files"
        yield Problem(CheckCode.CRYPT_H, "libxcrypt", message, advice=advice)


def check_cuda(context: CheckContext) -> Iterator[Problem]:
    """CUDA in the base and once more in the environment: two toolkits, or libraries that torch's wheels bring as well."""
    base, asked = _fit(context), context.recipe.cuda
    named = base.cuda if base else None
    if base is None or named is None:
        return
    has = f"the base has CUDA {named.value} ({named.path})"
    whole = base.toolkit(asked) if asked else None
    weight = _weight(base, whole or named)
    if not asked:
        message = f"{has}, which the recipe does not use{weight}"
        advice = "a base without CUDA is smaller"
        yield warning(CheckCode.CUDA_UNUSED, "base.image", message, advice=advice, source=named.source)
    elif whole is None:
        minor = ".".join(named.value.split(".")[:2])
        is_whole = base.toolkit(minor) is not None
        part = "" if is_whole else " without nvcc or its headers"
        message = f"{has}{part}, and the recipe asks for {asked}: CUDA would come twice"
        advice = f"or take a base without CUDA, or one with the whole toolkit of {asked} (`-devel`)"
        moves = ((PinChange("cuda", minor),),) if is_whole and minor != asked else ()
        yield Problem(CheckCode.CUDA_TWICE, "cuda", message, moves=moves, advice=advice, source=named.source)
    elif weight:
        message = f"CUDA's libraries come twice: torch's wheels bring those that it loads, and {has}{weight}"
        advice = (
            "a base without CUDA spares them: envbuilder lays out the compiler beside the wheels' libraries"
        )
        yield warning(CheckCode.CUDA_TWICE, "base.image", message, advice=advice, source=whole.source)


def check_cudas(context: CheckContext) -> Iterator[Problem]:
    base = _fit(context)
    if base is None or len(base.cudas) < 2:
        return
    plain, asked = base.cuda, context.recipe.cuda
    fits = plain is None or not asked or is_version(plain.value, asked)
    default = f"; /usr/local/cuda is {plain.value}" + ("" if fits else f", not {asked}") if plain else ""
    message = f"the base has {_listing('CUDA', base.cudas)}{default}"
    advice = "take a base with one CUDA: which one a build takes is decided by paths"
    yield (warning if fits else Problem)(CheckCode.CUDA_SEVERAL, "base.image", message, advice=advice)


def check_required_driver(context: CheckContext) -> Iterator[Problem]:
    """NVIDIA_REQUIRE_CUDA: NVIDIA's container runtime starts nothing where no alternative of it holds."""
    base, host = _fit(context), context.host
    if base is None or host is None or not host.driver:
        return
    text = base.env.get("NVIDIA_REQUIRE_CUDA", "")
    versions = {row.cuda: row.driver for row in context.tables.cudas.rows if row.driver}
    brands = {"tesla" if gpu.has_forward_compatibility else "" for gpu in known_gpus(context)}
    if not is_refused(text, driver=host.driver, brands=brands, drivers=versions):
        return
    cuda = next(
        (word.removeprefix("cuda>=") for word in text.split() if re.fullmatch(r"cuda>=[0-9.]+", word)), ""
    )
    first = versions.get(cuda)
    asks = f"CUDA {cuda}, which driver {first} was the first to have" if first else f"`{text}`"
    has = f"`{host.path}` says driver {host.driver}, and the base's NVIDIA_REQUIRE_CUDA asks for {asks}"
    message = f"{has}: NVIDIA's container runtime would not start it"
    advice = "have the host's driver updated, or take a base of an older CUDA"
    source = "NVIDIA_REQUIRE_CUDA in the image's config"
    yield Problem(CheckCode.DRIVER_REQUIRED, "base.image", message, advice=advice, source=source)


def check_own_torch(context: CheckContext) -> Iterator[Problem]:
    base, python = _fit(context), context.recipe.python
    if base and context.recipe.keeps_torch and not base.torch(python):
        there = ", ".join(f"torch {fact.value} ({fact.path})" for fact in base.every(Name.TORCH))
        message = f"the base has {there or 'no torch'}, and none for Python {python}: `pytorch: image` finds nothing"
        advice = "write the Python that the image has torch for, or the version of torch"
        yield Problem(CheckCode.BASE_PARTS, "pytorch", message, pins=("python",), advice=advice)
    for fact in base.every(Name.TORCH) if base and context.recipe.pytorch else ():
        brings = f"the environment brings torch {context.recipe.pytorch} of its own"
        message = f"the base has torch {fact.value} ({fact.path}), and {brings}"
        advice = "a base without torch is smaller by gigabytes"
        yield warning(CheckCode.TORCH_TWICE, "base.image", message, advice=advice, source=fact.source)


def check_packages(context: CheckContext) -> Iterator[Problem]:
    """Without a suite, the base must have the recipe's packages, and for extensions ninja or its wheel."""
    base, recipe = _fit(context), context.recipe
    if base is None or _suite(context):
        return
    there = {package.partition("=")[0] for package in base.packages}
    for index, name in enumerate(recipe.apt):
        if name not in there:
            message = f"the base does not have `{name}`; {_reason(base, None, name, ())}"
            advice = "leave it out, or take a base that has it"
            yield Problem(CheckCode.BASE_PARTS, f"apt[{index}]", message, advice=advice)
    if recipe.extensions and "ninja-build" not in there and not demands(context, "ninja"):
        reason = _reason(base, None, "ninja", ())
        message = f"the base does not have ninja, which compiles extensions; {reason}"
        moves = ((PinChange(f"packages[{len(recipe.packages)}]", "ninja"),),)
        advice = "its wheel serves as well"
        yield Problem(CheckCode.BASE_PARTS, "extensions", message, moves=moves, advice=advice)


def _fit(context: CheckContext) -> Base | None:
    return context.base if context.base and not is_foreign(context.base) else None


def _suite(context: CheckContext) -> Distribution | None:
    return suite_of(context.base, context.tables.distributions.by_name) if context.base else None


def _listing(what: str, facts: Sequence[Fact]) -> str:
    """Gcc 12.2.0 (/usr/bin/gcc-12) and 13.1.0 (…), oldest first."""
    ordered = sorted(facts, key=lambda fact: version_key(fact.value))
    words = [f"{fact.value} ({fact.path})" for fact in ordered]
    return f"{what} {either(words, 'and')}" if words else ""


def _reason(base: Base, suite: Distribution | None, what: str, offers: Sequence[str]) -> str:
    """Say why the pinned version or the package cannot be added."""
    if suite:
        return f"{suite.name} packages {what} {either(offers)}"
    if not base.distribution:
        return "nothing can be added to a base of an unknown distribution"
    if base.value(Name.MANAGER) != "dpkg":
        return f"nothing can be added to {base.distribution} without dpkg's note of what is installed"
    return f"envbuilder cannot add packages of {base.distribution}"


def _weight(base: Base, cuda: Fact) -> str:
    words = []
    for name, kind in ((Name.CUDA_LIBRARIES, "shared"), (Name.CUDA_STATIC, "static")):
        fact = base.part(name, cuda)
        if fact and fact.value.isdecimal():
            size = int(fact.value)
            amount = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
            words.append(f"{amount} of {kind} libraries")
    return f": {' and '.join(words)}" if words else ""


def is_refused(text: str, *, driver: str, brands: Collection[str], drivers: Mapping[str, str]) -> bool:
    """Whether no alternative of an NVIDIA_REQUIRE_CUDA can hold; what cannot be judged refuses nobody.

    `cuda>=12.4 brand=tesla,driver>=470,driver<471`: blanks separate alternatives, commas the conditions of one
    (https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html). `brands` are those
    of the host's GPUs, "" if unknown. `drivers` maps each CUDA to its driver.
    """
    alternatives = text.split()
    return bool(alternatives) and all(
        any(_fails(condition, driver, brands, drivers) for condition in alternative.split(","))
        for alternative in alternatives
    )


def _fails(condition: str, driver: str, brands: Collection[str], drivers: Mapping[str, str]) -> bool:
    match = _CONDITION.fullmatch(condition)
    name, sign, value = match.groups() if match else ("", "", "")
    if (name, sign) == ("brand", "="):
        return bool(brands) and value not in brands and ("" not in brands or value == "tesla")
    if (name, sign) == ("cuda", ">="):
        value = drivers.get(value, "")
    elif name != "driver":
        return False
    is_known = all(re.fullmatch(r"\d+(\.\d+)*", version) for version in (driver, value))
    return is_known and not _SIGNS[sign](version_key(driver), version_key(value))
