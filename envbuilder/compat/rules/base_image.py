"""Rules on an image that a recipe stands on, as its facts say: what it really has of what the recipe pins, and what it has too much.

What an image lacks is no problem where its own suite's packages bring it. An image for another processor or with another C
library gets that one finding: what else is in it does not matter then.
"""

from collections.abc import Iterator, Sequence

from envbuilder.compat.context import CheckContext, demands
from envbuilder.compat.image_as_distribution import PLATFORM, is_foreign, other_machine, suite_of
from envbuilder.compat.image_facts import Base, Fact, Name, is_version
from envbuilder.compat.nvidia_require import parse_require
from envbuilder.compat.problem import Change, CheckCode, Problem, either
from envbuilder.compat.rules.driver import known_gpus
from envbuilder.compat.tables.distribution import Distribution
from envbuilder.compat.tables.table import version_key
from envbuilder.core.findings import Severity


def check_seen(context: CheckContext) -> Iterator[Problem]:
    if context.recipe.image and context.base is None:
        yield Problem(
            code=CheckCode.BASE_UNSEEN,
            key="base.image",
            message=f"`lock` has not read the image `{context.recipe.image}` yet, so its contents are not checked",
            advice=f"`envbuilder lock {context.recipe.name}` does",
            severity=Severity.WARNING,
        )


def check_machine(context: CheckContext) -> Iterator[Problem]:
    fact = other_machine(context.base) if context.base else None
    if fact:
        yield Problem(
            code=CheckCode.BASE_FOREIGN,
            key="base.image",
            message=f"the base is for {fact.value or 'no processor that it names'}, and envbuilder builds for {PLATFORM}",
            advice=f"take an image that has linux/{PLATFORM}",
            source=fact.source,
        )


def check_libc(context: CheckContext) -> Iterator[Problem]:
    base = context.base
    if base is None or base.first(Name.GLIBC) or any(check_machine(context)):
        return
    musl = base.first(Name.MUSL)
    yield Problem(
        code=CheckCode.BASE_LIBC,
        key="base.image",
        message="the C library of the base is musl, and PyTorch's wheels are for glibc"
        if musl
        else "the base has no C library: it holds no distribution that programs could run in",
        advice="take an image of a distribution with glibc, as Debian, Ubuntu and RHEL are",
        source=musl.source if musl else "",
    )


def check_os(context: CheckContext) -> Iterator[Problem]:
    base = _fit(context)
    if base and not base.distribution:
        yield Problem(
            code=CheckCode.BASE_OS,
            key="base.image",
            message="the base does not say which distribution it is (no `ID` in /etc/os-release), so nothing can be added to it",
            advice="it serves where it has the compiler and the Python that the recipe pins",
            severity=Severity.WARNING,
        )


def check_gcc(context: CheckContext) -> Iterator[Problem]:
    base, pin = _fit(context), context.recipe.gcc
    if base is None:
        return
    suite, found, plain = _suite(context), base.gcc(pin), base.first(Name.PLAIN_GCC)
    has = _listing("gcc", base.gccs) or (
        f"gcc {base.value(Name.GCC)} without g++" if base.first(Name.GCC) else "no gcc"
    )
    if found is None and not (suite and pin in suite.gccs):
        yield Problem(
            code=CheckCode.GCC,
            key="gcc",
            message=f"the base has {has}, not gcc {pin}; {_reason(base, suite, 'gcc', suite.gccs if suite else ())}",
            pins=("gcc",),
            advice=f"or take a base that has gcc {pin}",
        )
    elif base.gccs and (found is None or (plain and not is_version(plain.value, pin))):
        origin = f"that of {suite.name} is put beside" if found is None and suite else "both are there"
        yield Problem(
            code=CheckCode.GCC_BESIDE,
            key="gcc",
            message=f"the base has {has}, and the recipe asks for gcc {pin}: {origin}, and `gcc` means {pin} in the environment",
            pins=("gcc",),
            severity=Severity.WARNING,
        )


def check_python(context: CheckContext) -> Iterator[Problem]:
    base, pin = _fit(context), context.recipe.python
    if base is None:
        return
    suite, found = _suite(context), base.python(pin)
    is_suites = suite is not None and suite.python == pin
    if found is None and not is_suites:
        has = _listing("Python", base.pythons) or "no Python"
        why = _reason(base, suite, "Python", (suite.python,) if suite else ())
        yield Problem(
            code=CheckCode.PYTHON,
            key="python",
            message=f"the base has {has}, not Python {pin}; {why}",
            pins=("python",),
            advice=f"or take a base that has Python {pin}: builds of Python from elsewhere, as uv brings, are in no source that a "
            "lock can name",
        )
    elif found and context.recipe.extensions and not base.has_headers(pin):
        if is_suites and found.path.startswith("/usr/bin/"):
            return  # the suite's package brings them
        yield Problem(
            code=CheckCode.BASE_PARTS,
            key="python",
            message=f"the base has Python {found.value} ({found.path}) without Python.h, which the recipe's extensions need",
            advice="take a base with the development files of that Python, as `-devel` images have",
        )


def check_libxcrypt(context: CheckContext) -> Iterator[Problem]:
    base, pin, suite = _fit(context), context.recipe.libxcrypt, _suite(context)
    if base is None or not pin:
        return
    found = base.first(Name.LIBXCRYPT)
    version = found.value if found else suite.libxcrypt if suite else ""
    if not is_version(version, pin) and not (version.count(".") == 1 and is_version(pin, version)):
        place = f" ({found.path})" if found else ""
        yield Problem(
            code=CheckCode.LIBXCRYPT,
            key="libxcrypt",
            message=f"the base has {f'libxcrypt {version}{place}' if version else 'no libxcrypt'}, not {pin}",
            pins=("libxcrypt",) if version else (),
            advice="" if version else "leave the pin out, or take a base that has it",
            source=found.source if found else "",
        )
    python = context.tables.python.get(context.recipe.python)
    if suite is None and not base.first(Name.CRYPT_H) and python and python.needs_crypt_h(context.python):
        yield Problem(
            code=CheckCode.CRYPT_H,
            key="libxcrypt",
            message=f"Python.h of Python {context.python} includes crypt.h, and the base does not have it",
            advice="take a base with libxcrypt's development files",
        )


def check_cuda(context: CheckContext) -> Iterator[Problem]:
    """CUDA in the base and once more in the environment: two toolkits, or libraries that torch's wheels bring as well."""
    base, asked = _fit(context), context.recipe.cuda
    named = base.cuda if base else None
    if base is None or named is None:
        return
    told = f"CUDA {named.value} ({named.path})"
    own = base.toolkit(asked) if asked else None
    weight = _weight(base, own or named)
    if not asked:
        yield Problem(
            code=CheckCode.CUDA_UNUSED,
            key="base.image",
            message=f"the base has {told}, which the recipe does not use{weight}",
            advice="a base without CUDA is smaller",
            source=named.source,
            severity=Severity.WARNING,
        )
    elif own is None:
        minor = ".".join(named.value.split(".")[:2])
        is_whole = base.toolkit(minor) is not None
        yield Problem(
            code=CheckCode.CUDA_TWICE,
            key="cuda",
            message=f"the base has {told}{'' if is_whole else ' without nvcc or its headers'}, and the recipe asks for {asked}: "
            "CUDA would come twice",
            moves=((Change(key="cuda", value=minor),),) if is_whole and minor != asked else (),
            advice=f"or take a base without CUDA, or one with the whole toolkit of {asked} (`-devel`)",
            source=named.source,
        )
    elif weight:
        yield Problem(
            code=CheckCode.CUDA_TWICE,
            key="base.image",
            message=f"CUDA's libraries come twice: torch's wheels bring those that it loads, and the base has {told}{weight}",
            advice="a base without CUDA spares them: envbuilder lays out the compiler beside the wheels' libraries",
            source=own.source,
            severity=Severity.WARNING,
        )


def check_cudas(context: CheckContext) -> Iterator[Problem]:
    base = _fit(context)
    if base is None or len(base.cudas) < 2:
        return
    plain, asked = base.cuda, context.recipe.cuda
    fits = plain is None or not asked or is_version(plain.value, asked)
    yield Problem(
        code=CheckCode.CUDA_SEVERAL,
        key="base.image",
        message=f"the base has {_listing('CUDA', base.cudas)}"
        + (f"; /usr/local/cuda is {plain.value}" + ("" if fits else f", not {asked}") if plain else ""),
        advice="take a base with one CUDA: which one a build takes is decided by paths",
        severity=Severity.WARNING if fits else Severity.ERROR,
    )


def check_required_driver(context: CheckContext) -> Iterator[Problem]:
    """NVIDIA_REQUIRE_CUDA: NVIDIA's container runtime starts nothing where no alternative of it holds."""
    base, host = _fit(context), context.host
    if base is None or host is None or not host.driver:
        return
    text = base.env.get("NVIDIA_REQUIRE_CUDA", "")
    require = parse_require(text)
    versions = {row.cuda: row.driver for row in context.tables.cudas.rows if row.driver}
    brands = {"tesla" if gpu.has_forward_compatibility else "" for gpu in known_gpus(context)}
    if require.holds(driver=host.driver, brands=brands, drivers=versions) is not False:
        return
    least = versions.get(require.cuda, "")
    yield Problem(
        code=CheckCode.DRIVER_REQUIRED,
        key="base.image",
        message=f"`{host.path}` says driver {host.driver}, and the base's NVIDIA_REQUIRE_CUDA asks for "
        + (f"CUDA {require.cuda}, which driver {least} was the first to have" if least else f"`{text}`")
        + ": NVIDIA's container runtime would not start it",
        advice="have the host's driver updated, or take a base of an older CUDA",
        source="NVIDIA_REQUIRE_CUDA in the image's config",
    )


def check_own_torch(context: CheckContext) -> Iterator[Problem]:
    base = _fit(context)
    for fact in base.every(Name.TORCH) if base else ():
        yield Problem(
            code=CheckCode.TORCH_TWICE,
            key="base.image",
            message=f"the base has torch {fact.value} ({fact.path}), and the environment brings torch {context.recipe.pytorch} of its own",
            advice="a base without torch is smaller by gigabytes",
            source=fact.source,
            severity=Severity.WARNING,
        )


def check_packages(context: CheckContext) -> Iterator[Problem]:
    base = _fit(context)
    if base is None or _suite(context):
        return
    there = {package.partition("=")[0] for package in base.packages}
    for index, name in enumerate(context.recipe.apt):
        if name not in there:
            yield Problem(
                code=CheckCode.BASE_PARTS,
                key=f"apt[{index}]",
                message=f"the base does not have `{name}`; {_reason(base, None, name, ())}",
                advice="leave it out, or take a base that has it",
            )


def check_ninja(context: CheckContext) -> Iterator[Problem]:
    """What torch compiles extensions with; the suite's packages bring it, elsewhere its wheel can."""
    base = _fit(context)
    if base is None or _suite(context) or not context.recipe.extensions or demands(context, "ninja"):
        return
    if not any(package.startswith("ninja-build=") for package in base.packages):
        yield Problem(
            code=CheckCode.BASE_PARTS,
            key="extensions",
            message=f"the base does not have ninja, which compiles extensions; {_reason(base, None, 'ninja', ())}",
            moves=((Change(key=f"packages[{len(context.recipe.packages)}]", value="ninja"),),),
            advice="its wheel serves as well",
        )


def _fit(context: CheckContext) -> Base | None:
    """The base, where there is one that programs can run in."""
    return context.base if context.base and not is_foreign(context.base) else None


def _suite(context: CheckContext) -> Distribution | None:
    return suite_of(context.base, context.tables.distribution) if context.base else None


def _listing(what: str, facts: Sequence[Fact]) -> str:
    """Gcc 12.2.0 (/usr/bin/gcc-12) and 13.1.0 (…), oldest first."""
    ordered = sorted(facts, key=lambda fact: version_key(fact.value))
    words = [f"{fact.value} ({fact.path})" for fact in ordered]
    return f"{what} {either(words).replace(' or ', ' and ')}" if words else ""


def _reason(base: Base, suite: Distribution | None, what: str, offers: Sequence[str]) -> str:
    """Why nothing of it can be added."""
    if suite:
        return f"{suite.name} packages {what} {either(offers)}"
    if not base.distribution:
        return "nothing can be added to a base of an unknown distribution"
    if base.value(Name.MANAGER) != "dpkg":
        return f"nothing can be added to {base.distribution} without dpkg's note of what is installed"
    return f"envbuilder cannot add packages of {base.distribution}"


def _weight(base: Base, cuda: Fact) -> str:
    sizes = [
        (name, int(fact.value))
        for name in (Name.CUDA_LIBRARIES, Name.CUDA_STATIC)
        if (fact := base.part(name, cuda)) and fact.value.isdecimal()
    ]
    words = [
        f"{_amount(size)} of {'static' if name is Name.CUDA_STATIC else 'shared'} libraries"
        for name, size in sizes
    ]
    return f": {' and '.join(words)}" if words else ""


def _amount(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
