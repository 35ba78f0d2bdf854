"""Read conda's `environment.yml` and the arguments of `conda install`.

conda has names of its own and packages what Debian has as well: `conda.toml` has the usual ones. Any other name is taken for the
name on a Python index, and all such names are said together. A program or library that conda's channels alone have goes to the
recipe's key `conda`, with the channels of the file.
"""

import functools
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from envbuilder.core.errors import UsageError
from envbuilder.core.places import Mistakes, PlacedNode, load, text_of
from envbuilder.init.pip import read_line, read_requirement
from envbuilder.init.requests import CONFIGURED, Requests
from envbuilder.recipe.channels import CHANNEL
from envbuilder.recipe.other_locks import Package
from envbuilder.recipe.requirement_file import logical_lines

_PINS: Final = {
    "python": "python", "cudatoolkit": "cuda", "pytorch-cuda": "cuda", "cuda-toolkit": "cuda", "cuda": "cuda", "cuda-nvcc": "cuda",
    "cuda-version": "cuda", "cudatoolkit-dev": "cuda",
}  # fmt: skip
_DEFAULTS: Final = "https://repo.anaconda.com/pkgs/main"
_HOST: Final = "https://conda.anaconda.org"  # of the channels with a plain name
_USUAL: Final = ("conda-forge", "defaults", "main", "anaconda", "pytorch", "nvidia", "pip", "pypi")
_OF_PROGRAMS: Final = "bioconda"  # a channel of programs: another name of it is no Python package's
_TABLE: Final = Path(__file__).with_name("conda.toml")
# Packages of conda that Debian, torch or the toolkit replaces.
_SYSTEM: Final = re.compile(
    r"_.*|lib(?!rosa|cst|svm|archive-c).*|.*-ng|.*_abi|ld_impl_.*|.*-compilers?|.*_linux-64|binutils.*|sysroot.*|kernel-headers.*|"
    r"openssl|zlib|ncurses|readline|tk|xz|sqlite|bzip2|ca-certificates|gmp|mkl.*|blas|openblas|intel-openmp|llvm-openmp|"
    r"freetype|jpeg|lcms2|lerc|zstd|lz4-c|giflib|icu|nettle|gnutls|lame|openh264|openjpeg|cudnn|nccl|"
    r"pytorch-mutex|ffi|expat|fontconfig|glib|gstreamer.*|gst-plugins.*|qt(-.*)?|pcre.*|dbus|hdf5|cuda-.*|nvidia-.*|"
    # of conda alone, mostly in the export of a whole environment
    r"aws-.*|m2w64-.*|msys2-.*|vc|vc14_runtime|vs2015_runtime|ucrt|pthreads-win32|pthread-stubs|win_inet_pton|krb5|freeglut|jasper|"
    r"brotli-bin|c-ares|xorg-.*|zeromq|yaml|orc|re2|snappy|tbb|gettext|glib-tools|blas-devel|xxhash|tzdata|alsa-lib|attr|dav1d|"
    r"cpython|python-gil|python-freethreading|"  # parts of Python
    r"pywin32|pywinpty|win32_setctime|wincertstore|menuinst|dataclasses|appnope|"  # of other systems and older Pythons
    r"font-ttf-.*|fonts-.*|graphite2|harfbuzz|keyutils|mpg123|mysql-.*|nspr|nss|pixman|cairo|pulseaudio.*|svt-av1|x264|x265|aom"
)
_GCC: Final = re.compile(r"g(cc|xx)(_linux-64)?")
_KNOWN: Final = re.compile(f"{_SYSTEM.pattern}|{_GCC.pattern}")
_SPEC: Final = re.compile(
    r"(?:(?P<channel>[^\s:]+)::)?(?P<name>[A-Za-z0-9_.-]+)\s*"
    r"(?:(?P<op>==|=|!=|~=|>=|<=|>|<)\s*(?P<version>[^\s=,]+)(?:=(?P<build>\S+))?|"
    r"(?P<bounds>(?:(?:[=!~<>]=|<|>)\s*[\w.*!+]+\s*(?:,\s*|$)){2,}))?"
)


class _Names(NamedTuple):
    """What stands for a name of conda: the package of an index or of Debian, or nothing."""

    pypi: Mapping[str, str]
    debian: Mapping[str, str]
    conda: Mapping[str, str]  # with the channel
    modules: Collection[str]


@functools.cache
def _names() -> _Names:
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    same, programs = ({name: name for name in table[key].split()} for key in ("same", "programs"))
    return _Names(
        pypi=same | table["pypi"],
        debian=programs | table["debian"],
        conda=table["conda"],
        modules=table["modules"],
    )


def read_environment(path: Path, requests: Requests) -> None:
    """Read every entry; raises UsageError for a file that is not YAML or no environment."""
    mistakes = Mistakes()
    root = load(path, mistakes)
    if root is None or mistakes.findings:
        raise UsageError(f"`{path}` cannot be read", findings=mistakes.findings)
    if root.get("dependencies") is None:
        raise UsageError(f"`{path}` has no `dependencies`: it is no environment of conda")
    listed: list[tuple[str, str]] = []  # channel and place
    for key, node in root.inner.items():
        match key:
            case "dependencies":
                # Of two versions of CUDA the last one counts, and `pytorch-cuda` chooses the build of torch.
                for item in sorted(node.inner.values(), key=lambda item: "pytorch-cuda" in str(item.value)):
                    _read_item(item, path, requests)
            case "variables":
                for name, value in node.inner.items():
                    requests.variable(str(name), text_of(value.value), value.key_where)
            case "channels":
                listed = [(text_of(item.value), node.key_where) for item in node.inner.values()]
            case "name":
                pass
            case "prefix":
                requests.leave(node.key_where, f"prefix: {text_of(node.value)}", "a folder of one machine")
            case _:
                requests.leave(node.key_where, str(key), "a key that recipes do not have")
    take_channels(listed, requests)
    requests.say_together()


def take_channels(channels: Sequence[tuple[str, str]], requests: Requests) -> None:
    """Put the channels of a file before those that a table knows: the first that has a name gives the package."""
    if not requests.from_conda:
        if others := [name for name, _ in channels if name not in ("defaults", "conda-forge", "nodefaults")]:
            requests.leave(channels[0][1], f"channels: {', '.join(others)}", CONFIGURED)
        return
    addresses: list[str] = []
    for name, where in channels:
        plain = f"{_HOST}/{name}" if re.fullmatch(r"\w[\w-]*(/\w[\w.-]*)*", name) else name
        address = _DEFAULTS if name == "defaults" else plain
        if name == "nodefaults":
            continue
        if re.fullmatch(CHANNEL.pattern, address):
            addresses.append(address)
        else:
            shown = "a channel with a token" if "/t/" in name else f"the channel {name}"
            requests.leave(where, shown, f"expected {CHANNEL.expected}", hint=CHANNEL.hint)
    requests.channels = list(dict.fromkeys((*addresses, *requests.channels)))


def _take_from_conda(spec: str, channel: str, where: str, requests: Requests) -> None:
    """Request a package of conda. `channel` is one that has it, by its plain name."""
    requests.from_conda.setdefault(spec, where)
    # The packages of other channels stand on those of conda-forge.
    needed = (f"{_HOST}/conda-forge", f"{_HOST}/{channel}")
    requests.channels = list(dict.fromkeys((*requests.channels, *needed)))
    requests.note(where, f"`{spec}` comes from conda, beside the environment's Python")


def _read_item(item: PlacedNode, path: Path, requests: Requests) -> None:
    if not isinstance(item.value, dict):
        read_spec(text_of(item.value), item.where, requests)
    for key, node in item.inner.items():
        if key != "pip":
            requests.leave(node.key_where, str(key), "not a package manager that a recipe knows")
            continue
        for entry in node.inner.values():
            for _, line in logical_lines(text_of(entry.value)):
                read_line(line, entry.where, requests, locate=path.parent.joinpath)


def read_install(words: Sequence[str], where: str, requests: Requests) -> None:
    """Read the arguments of `conda install`."""
    rest, channels = list(words), list[tuple[str, str]]()
    while rest:
        word = rest.pop(0)
        if word in ("-c", "--channel"):
            channels += ((name, where) for name in rest[:1])
            rest = rest[1:]
        elif word in ("-n", "--name", "-p", "--prefix"):
            rest = rest[1:]
        elif not word.startswith("-"):
            read_spec(word, where, requests)
    take_channels(channels, requests)
    requests.say_together()


def read_locked(package: Package, where: str, requests: Requests) -> None:
    """Read a package that conda installs. Without Python in it, Debian's stands for it if a table knows which, else it is listed."""
    name, version, names = package.name.lower(), package.version, _names()
    usual, build = name.replace("_", "-"), f"={package.build}" if package.build else ""
    known = {*_PINS, *names.pypi, *names.conda, *names.modules, "cpuonly"}
    if usual in names.debian:
        requests.moved.append((where, f"{name} {version}"))
        requests.debian(names.debian[usual], where)
    elif package.is_python or usual in known or _KNOWN.fullmatch(name):
        if _PINS.get(name) == "cuda":
            version = ".".join(version.split(".")[:2])
        read_spec(f"{name}=={version}{build}", where, requests, purl=package.purl)
    else:
        requests.conda.append((where, f"{name} {version}"))


def read_spec(text: str, where: str, requests: Requests, *, purl: str = "") -> None:
    """Read one spec: `channel::name=version=build`, or one with another comparison. `purl` is its name on a Python index, if known."""
    spec = _SPEC.fullmatch(text.partition("#")[0].strip())
    # A choice between versions is left out. Several bounds are a requirement of pip.
    if "|" in text or (spec is None and "[" in text):
        requests.leave(where, text, "a choice that PEP 508 cannot say", hint="write the bounds that matter")
        return
    if spec is None:
        read_requirement(text.rpartition("::")[2], where, requests)
        return
    name, names = spec["name"].lower(), _names()
    usual = name.replace("_", "-")
    specifier = spec["bounds"] or _specifier(spec["op"] or "", spec["version"] or "")
    if name in _PINS:
        requests.pin(_PINS[name], specifier, where)
        if name in ("cudatoolkit", "pytorch-cuda"):
            requests.note(where, f"`{text}` is the key `cuda`, which brings the whole toolkit")
    elif _GCC.fullmatch(name):
        requests.pin("gcc", re.sub(r"^(==\d+)\..*", r"\1", specifier), where)
    elif name == "cpuonly":
        requests.gpus = requests.gpus or ()
    elif usual in names.debian:
        if specifier:
            requests.moved.append((where, text))
        requests.debian(names.debian[usual], where)
    elif usual in names.conda or (spec["channel"] == _OF_PROGRAMS and usual not in names.pypi):
        plain = f"{name}{(spec['bounds'] or (spec['op'] or '') + (spec['version'] or '')).replace(' ', '')}"
        _take_from_conda(plain, names.conda.get(usual, _OF_PROGRAMS), where, requests)
    elif usual in names.modules:
        hint = "look for its source; packages of the key `conda` have a Python of their own"
        requests.leave(
            where, text, "only conda's channels have it, and the environment imports it", hint=hint
        )
    elif name == "pip":
        hint = "packages go into the recipe's `packages`"
        requests.leave(where, text, "an environment cannot change, and has no pip", hint=hint)
    elif _SYSTEM.fullmatch(name):
        requests.system.append((where, text))
    elif spec["channel"] and not (purl or usual in names.pypi or spec["channel"] in _USUAL):
        requests.conda.append((where, text))
    else:
        if name == "pytorch" and (build := re.search(r"cuda(\d+?)\.?(\d)(?=_|$)", spec["build"] or "")):
            requests.pin("cuda", f"=={build[1]}.{build[2]}", where)
        if not name.startswith(("pytorch", "torch")):  # whose releases have the same numbers on an index
            specifier = re.sub(r"^(==\d+(?:\.\d+)*)$", r"\1.*", specifier)
        pypi = purl or names.pypi.get(usual, "")
        if not pypi:
            requests.guessed.append((where, name))
        read_requirement(f"{pypi or name}{specifier}", where, requests)


def _specifier(operator: str, version: str) -> str:
    """Return the PEP 440 specifier: `=1.21` means any 1.21, a full version only itself."""
    version = version.removesuffix(".*")
    if version in ("", "*"):
        return ""
    any_of_them = ".*" if operator == "=" and version.count(".") < 2 else ""
    return f"{'==' if operator == '=' else operator}{version}{any_of_them}"
