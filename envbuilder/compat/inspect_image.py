"""Find facts about an image in its paths and a few small files, without Docker and without root.

`layers/overlay.py` streams the layers once and keeps the files that `is_wanted` chooses. An unreadable text
or a file without a version gives no fact: a rule may miss a fact, but never trusts a wrong one.
"""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from envbuilder.artifacts.oci.model import Configuration, load_json
from envbuilder.compat.image_facts import SUITES, Fact, Name
from envbuilder.compat.repositories import KEYS, LISTS, inline_keys, read_lists
from envbuilder.compat.tables.table import version_key
from envbuilder.core.processor import PROCESSORS, X86_64
from envbuilder.layers.entry import Entry, Kind, follow
from envbuilder.sources.installed import DPKG, DPKG_PARTS, RPM, read_dpkg, read_rpm

OS_RELEASE: Final = ("etc/os-release", "usr/lib/os-release")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LIB: Final = r"(?:usr/)?lib\w*(?:/\w+-linux-\w+)?"
_LIBC: Final = re.compile(rf"{_LIB}/(?:libc\.so\.6|libc-2\.\d+\.so)")
_MUSL: Final = re.compile(r"(?:usr/)?lib/ld-musl-(\w+)\.so\.1")
_LIBCRYPT: Final = re.compile(rf"({_LIB})/(libcrypt\.so\.[12])")
_LIBCRYPT_FILE: Final = re.compile(rf"{_LIB}/libcrypt(?:\.so\.[0-9.]+|-2\.\d+\.so)")
_DRIVER: Final = re.compile(
    rf"(.+)/bin/(?:{X86_64.machine}(?:-\w+)?-linux(?:-gnu)?-)?(gcc|g\+\+)(?:-(\d+)(?:\.\d+)*)?"
)
_PROPER: Final = re.compile(
    rf"(.+)/(?:lib|lib64|libexec)/gcc/{X86_64.machine}[^/]*/(\d+(?:\.\d+)*)/(cc1|cc1plus)"
)
_PYTHON: Final = re.compile(r"(.+)/bin/python(3\.\d+)")
_PATCHLEVEL: Final = re.compile(r"(.+)/include/python(3\.\d+)/patchlevel\.h")
_CUDA: Final = re.compile(
    r"(?P<root>(?:usr/local|opt|opt/[\w.-]+)/cuda(?:-[\d.]+)?|usr/lib/nvidia-cuda-toolkit)/"
    rf"(?:version\.(?:json|txt)|bin/nvcc|(?:targets/{X86_64.cuda_target}/)?(?:include/cuda\.h|lib(?:64)?/libcudart\.so[.\d]*))"
)
_CUDA_TEXT: Final = re.compile(r".*/cuda[^/]*/(?:version\.(?:json|txt)|(?:targets/[^/]+/)?include/cuda\.h)")
_LIBRARY: Final = re.compile(r".*/lib(nccl|cudnn)\.so\.(\d+\.\d+\.\d+)")
_TORCH: Final = re.compile(r".*/(?:site|dist)-packages/torch-([^/]+)\.dist-info/METADATA")
_BERKELEY: Final = "var/lib/rpm/Packages"
_MACHINES: Final = {processor.elf: processor.debian for processor in PROCESSORS} | {
    3: "386", 21: "ppc64le", 22: "s390x", 243: "riscv64",
}  # fmt: skip
_MUSL_MACHINES: Final = {processor.machine: processor.debian for processor in PROCESSORS} | {"i386": "386"}
_NUMBERS: Final = re.compile(r"(?:\d+:)?(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The facts found in an image."""

    facts: tuple[Fact, ...]  # sorted
    packages: tuple[str, ...]  # name=version, sorted
    status: str  # the text of dpkg's database; "" without one
    keys: Mapping[str, bytes]  # for apt, by path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    paths: Mapping[str, Entry]
    contents: Mapping[str, bytes]
    configuration: Configuration
    packages: Mapping[str, str]

    def text(self, path: str) -> str:
        """Return the text of a path, links followed; "" if it is absent or was not kept."""
        real = follow(self.paths, path)
        return self.contents.get(real or "", b"").decode("utf-8", "replace")

    def has(self, path: str) -> bool:
        real = follow(self.paths, path)
        return real is not None and self.paths[real].kind is Kind.FILE

    def matching(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
        """Yield the paths that match, in order, with their matches."""
        for path in self.paths:
            if match := pattern.fullmatch(path):
                yield path, match

    def package(self, *names: str) -> tuple[str, str]:
        """Return the upstream version of the first installed package and its source; "" twice if there is none."""
        for name in names:
            if number := _NUMBERS.match(self.packages.get(name, "")):
                return number[1], f"package {name} {self.packages[name]}"
        return "", ""


def is_wanted(path: str) -> bool:
    """Return whether the content of this file is needed."""
    patterns = (_LIBC, _LIBCRYPT_FILE, _DRIVER, _PATCHLEVEL, _CUDA_TEXT, LISTS, KEYS)
    named = path in (*OS_RELEASE, DPKG, *RPM) or path.startswith(DPKG_PARTS)
    return named or any(pattern.fullmatch(path) for pattern in patterns)


def inspect_tree(
    paths: Mapping[str, Entry], contents: Mapping[str, bytes], configuration: Configuration
) -> Inside:
    """Return every fact of an image's tree and its config."""
    packages, manager = _packages(paths, contents)
    whole = dict(sorted(_with_folders(paths).items()))
    tree = _Tree(paths=whole, contents=contents, configuration=configuration, packages=packages)
    facts = [
        *manager, *_settings(configuration), *_system(tree), *_libc(tree), *_compilers(tree), *_pythons(tree),
        *_crypt(tree), *_cudas(tree), *_libraries(tree), *_apt(tree),
    ]  # fmt: skip
    return Inside(
        facts=tuple(sorted({_plain(fact) for fact in facts})),
        packages=tuple(sorted(f"{name}={version}" for name, version in packages.items())),
        status=contents.get(DPKG, b"").decode("utf-8", "replace"),
        keys={path: contents[path] for path, _ in tree.matching(KEYS) if path in contents}
        | inline_keys(_lists(tree)),
    )


def _at(name: Name, value: str, path: str, source: str = "") -> Fact:
    """Return a fact about a file of the image, which is its own source unless another one is given."""
    return Fact(name=name, value=value, path=f"/{path}", source=source or f"/{path}")


def _plain(fact: Fact) -> Fact:
    """Escape control characters and lone surrogates: anybody may have written the image."""

    def plain(text: str) -> str:
        encoded = text.encode("utf-8", "backslashreplace").decode()
        return re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\x{ord(match[0]):02x}", encoded)

    return Fact(name=fact.name, value=plain(fact.value), path=plain(fact.path), source=plain(fact.source))


def _with_folders(paths: Mapping[str, Entry]) -> dict[str, Entry]:
    """Add the parent folders that no layer names; a runtime creates them."""
    whole = dict(paths)
    for path in paths:
        above = posixpath.dirname(path)
        while above and above not in whole:
            whole[above] = Entry(path=above, kind=Kind.DIRECTORY, mode=0o755, uid=0, gid=0, mtime=0)
            above = posixpath.dirname(above)
    return whole


def _packages(
    paths: Mapping[str, Entry], contents: Mapping[str, bytes]
) -> tuple[dict[str, str], tuple[Fact, ...]]:
    dpkg = read_dpkg(contents)
    if dpkg:
        return dpkg, (_at(Name.MANAGER, "dpkg", DPKG, f"{len(dpkg)} packages"),)
    for path in RPM:
        if path in contents:
            try:
                packages = read_rpm(contents[path])
            except ValueError as error:
                return {}, (_at(Name.MANAGER, "rpm", path, str(error)),)
            return packages, (_at(Name.MANAGER, "rpm", path, f"{len(packages)} packages"),)
    if _BERKELEY in paths:
        return {}, (_at(Name.MANAGER, "rpm", _BERKELEY, "in Berkeley DB's form, which is not read"),)
    return {}, ()


def _settings(configuration: Configuration) -> Iterator[Fact]:
    source = "the image's config"
    yield Fact(name=Name.ARCHITECTURE, value=configuration.architecture, path="", source=source)
    image = configuration.image
    for name, value in image.env:
        yield Fact(name=Name.ENV, value=f"{name}={value}", path="", source=source)
    entrypoint = json.dumps(image.entrypoint) if image.entrypoint else ""
    values = ((Name.USER, image.user), (Name.ENTRYPOINT, entrypoint), (Name.FOLDER, image.workdir))
    for name, value in values:
        if value:
            yield Fact(name=name, value=value, path="", source=source)


def _system(tree: _Tree) -> Iterator[Fact]:
    for path in OS_RELEASE:
        pairs = (line.partition("=") for line in tree.text(path).splitlines())
        fields = {key.strip(): value.strip().strip("'\"") for key, _, value in pairs}
        if name := fields.get("ID", ""):
            version = fields.get("VERSION_CODENAME" if name in SUITES else "VERSION_ID", "")
            yield _at(Name.OS, f"{name}/{version or 'unknown'}", path)
            return


def _lists(tree: _Tree) -> dict[str, str]:
    return {path: tree.text(path) for path, _ in tree.matching(LISTS)}


def _apt(tree: _Tree) -> Iterator[Fact]:
    codename = next((fact.value.partition("/")[2] for fact in _system(tree)), "")
    for path, line in read_lists(_lists(tree), codename):
        yield _at(Name.APT, line, path)


def _libc(tree: _Tree) -> Iterator[Fact]:
    versions = []
    for path, _ in tree.matching(_LIBC):
        content = tree.contents.get(path, b"")
        version = re.search(rb"stable release version (\d+\.\d+)", content)
        if machine := _machine(content):
            yield _at(Name.ARCHITECTURE, machine, path)
        if version:
            versions.append((machine != X86_64.debian, path, version[1].decode()))
    for _, path, number in sorted(versions)[:1]:
        yield _at(Name.GLIBC, number, path)
    for path, match in tree.matching(_MUSL):
        yield _at(Name.MUSL, "", path)
        yield _at(Name.ARCHITECTURE, _MUSL_MACHINES.get(match[1], match[1]), path)


def _machine(content: bytes) -> str:
    if content[:4] != b"\x7fELF" or len(content) < 20:
        return ""
    number = int.from_bytes(content[18:20], "little" if content[5] == 1 else "big")
    return _MACHINES.get(number, f"machine {number}")


def _compilers(tree: _Tree) -> Iterator[Fact]:
    """Yield each gcc driver in a `bin` whose compiler proper is installed; a driver alone compiles nothing."""
    proper = {(match[1], match[3], match[2]) for path, match in tree.matching(_PROPER) if tree.has(path)}
    best: dict[tuple[str, str], Fact] = {}
    reals: dict[str, str] = {}  # real path of a gcc → its version
    for path, match in tree.matching(_DRIVER):
        real = follow(tree.paths, path)
        if real is None or tree.paths[real].kind is not Kind.FILE:
            continue
        version, source = _driver_version(tree, real, match)
        inner = "cc1" if match[2] == "gcc" else "cc1plus"
        folders = (version, version.partition(".")[0])  # gcc's own install names it 12.2.0, distributions 12
        if not version or not any((match[1], inner, folder) in proper for folder in folders):
            continue
        name = Name.GCC if match[2] == "gcc" else Name.GXX
        fact = _at(name, version, path, source)
        if name is Name.GCC:
            reals[real] = version
        known = best.get((name, version))
        if known is None or _plainness(fact) < _plainness(known):
            best[name, version] = fact
    yield from best.values()
    for folder in _search(tree):
        real = follow(tree.paths, f"{folder}/gcc")
        if real in reals:
            path = f"{folder}/gcc"
            yield Fact(name=Name.PLAIN_GCC, value=reals[real], path=path, source=f"/{real}")
            return


def _driver_version(tree: _Tree, real: str, match: re.Match[str]) -> tuple[str, str]:
    """Return the version from the driver itself, otherwise from its package, otherwise from its name."""
    named = set(re.findall(rb"\0(\d{1,2}\.\d+\.\d+)\0", tree.contents.get(real, b"")))
    if len(named) == 1:
        return named.pop().decode(), f"/{real}"
    version, source = tree.package(f"{match[2]}-{match[3]}" if match[3] else match[2])
    return (version, source) if version else (match[3] or "", f"/{real}")


def _plainness(fact: Fact) -> tuple[bool, int, str]:
    """Sort gcc-12 before gcc, which may later be another version, and before x86_64-linux-gnu-gcc-12."""
    return not fact.path[-1].isdigit(), len(fact.path), fact.path


def _search(tree: _Tree) -> list[str]:
    env = dict(tree.configuration.image.env)
    return [folder for folder in env.get("PATH", _PATH).split(":") if folder.startswith("/")]


def _pythons(tree: _Tree) -> Iterator[Fact]:
    for path, match in tree.matching(_PYTHON):
        if tree.paths[path].kind is not Kind.FILE:
            continue
        prefix, minor = match[1], match[2]
        header = f"{prefix}/include/python{minor}/patchlevel.h"
        exact = re.search(r'#define PY_VERSION\s+"(\d+\.\d+\.\d+)', tree.text(header))
        if exact:
            version, source = exact[1], f"/{header}"
        elif prefix == "usr" and (packaged := tree.package(f"python{minor}-minimal", f"python{minor}"))[0]:
            version, source = packaged
        else:
            version, source = minor, f"/{path}"
        yield _at(Name.PYTHON, version, path, source)
        if tree.has(python_h := f"{prefix}/include/python{minor}/Python.h"):
            yield _at(Name.PYTHON_HEADERS, version, python_h)


def _crypt(tree: _Tree) -> Iterator[Fact]:
    for path, match in tree.matching(_LIBCRYPT):
        real = follow(tree.paths, path)
        if real is None:
            continue
        versions = re.findall(rb"XCRYPT_(\d+\.\d+)", tree.contents.get(real, b""))
        number = match[2][-1]
        version, source = tree.package(f"libcrypt{number}", "libxcrypt", "libxcrypt-compat")
        if not version and versions:
            version = max((text.decode() for text in versions), key=version_key)
            source = f"/{real}"
        yield _at(Name.LIBCRYPT, match[2], path)
        if version:
            yield _at(Name.LIBXCRYPT, version, path, source)
    for header in ("usr/include/crypt.h", f"usr/include/{X86_64.gnu}/crypt.h"):
        if tree.has(header):
            yield _at(Name.CRYPT_H, "", header)


def _cudas(tree: _Tree) -> Iterator[Fact]:
    for root in dict.fromkeys(match["root"] for _, match in tree.matching(_CUDA)):
        yield from _cuda(tree, root)
    if real := follow(tree.paths, "usr/local/cuda"):
        yield Fact(name=Name.PLAIN_CUDA, value=f"/{real}", path="/usr/local/cuda", source="/usr/local/cuda")


def _cuda(tree: _Tree, root: str) -> Iterator[Fact]:
    below = ((path, entry) for path, entry in tree.paths.items() if path.startswith(f"{root}/"))
    files = {path: entry for path, entry in below if entry.kind is Kind.FILE}
    parts = _version_json(tree.text(f"{root}/version.json"))
    version, source = _cuda_version(tree, root, parts)
    place = f"/{root}"
    yield Fact(name=Name.CUDA, value=version, path=place, source=source)
    if tree.has(f"{root}/bin/nvcc"):
        nvcc = parts.get("cuda_nvcc", "")
        source = f"{place}/version.json" if nvcc else source
        yield _at(Name.NVCC, nvcc or version, f"{root}/bin/nvcc", source)
    for path in sorted(files):
        if runtime := re.search(r"/libcudart\.so\.(\d+\.\d+\.\d+)$", path):
            yield _at(Name.CUDART, runtime[1], path)
        if path.endswith("/include/cuda_runtime.h"):
            yield _at(Name.CUDA_HEADERS, version, path)
    shared = sum(entry.size for path, entry in files.items() if ".so" in posixpath.basename(path))
    static = sum(entry.size for path, entry in files.items() if path.endswith(".a"))
    for name, size in ((Name.CUDA_LIBRARIES, shared), (Name.CUDA_STATIC, static)):
        if size:
            yield Fact(name=name, value=str(size), path=place, source=f"{place}: bytes")


def _cuda_version(tree: _Tree, root: str, parts: Mapping[str, str]) -> tuple[str, str]:
    if "cuda" in parts:
        return parts["cuda"], f"/{root}/version.json"
    old = re.search(r"CUDA Version (\d+\.\d+(?:\.\d+)?)", tree.text(f"{root}/version.txt"))
    if old:
        return old[1], f"/{root}/version.txt"
    for header in (f"{root}/include/cuda.h", f"{root}/targets/{X86_64.cuda_target}/include/cuda.h"):
        if number := re.search(r"#define CUDA_VERSION\s+(\d+)", tree.text(header)):
            return f"{int(number[1]) // 1000}.{int(number[1]) % 1000 // 10}", f"/{header}"
    package = tree.package("nvidia-cuda-toolkit") if root.startswith("usr/lib/") else ("", "")
    named = re.search(r"-(\d+\.\d+)$", root)
    return package if package[0] else (named[1] if named else "", f"/{root}")


def _version_json(text: str) -> dict[str, str]:
    """Return the version of each part in NVIDIA's version.json; empty for another file."""
    try:
        parts = load_json(text).items()
    except ValueError:
        return {}
    return {
        name: str(part["version"]) for name, part in parts if isinstance(part, dict) and "version" in part
    }


def _libraries(tree: _Tree) -> Iterator[Fact]:
    names = {"nccl": Name.NCCL, "cudnn": Name.CUDNN}
    for path, match in tree.matching(_LIBRARY):
        if tree.paths[path].kind is Kind.FILE:
            yield _at(names[match[1]], match[2], path)
    for path, match in tree.matching(_TORCH):
        place = f"/{posixpath.dirname(posixpath.dirname(path))}/torch"
        yield Fact(name=Name.TORCH, value=match[1], path=place, source=f"/{path}")
