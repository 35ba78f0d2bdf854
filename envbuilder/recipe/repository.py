"""The apt repositories of a recipe: NVIDIA's by a short name, others by address, suite and key."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Discriminator, Tag

from envbuilder.core.cache import sha256_file
from envbuilder.core.models import FieldRule, Mistake, Shape
from envbuilder.core.processor import X86_64, Processor
from envbuilder.recipe.fields import OwnFile, RecipeCode
from envbuilder.sources.names import APT

IMAGE: Final = "image-"  # begins the name of a repository that a base image has
NVIDIA: Final = Shape(
    pattern=r"nvidia/(debian|ubuntu)[0-9]+",
    expected="`nvidia/ubuntu2004` or another of NVIDIA's repositories, or a map with name, url, suite, components and key",
)
NVIDIA_REPOSITORIES: Final = "https://developer.download.nvidia.com/compute/cuda/repos/"
# By the name of the file in the repository. NVIDIA/cuda-repo-management on GitHub lists which distribution has which.
NVIDIA_KEY: Final = ("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC")
_NAME: Final = Shape(
    pattern=rf"(?!{IMAGE})[a-z][a-z0-9-]*",
    expected="a name of small letters, digits and `-`",
    hint="the lock names the source of each package by it",
)
_URL: Final = Shape(
    pattern=r"(https?://[^\s@\[\]]+|file:///[^\s\[\]]*)",
    expected="the address of an apt repository, without user and password",
    hint="the part of apt's line before the suite; a login belongs in apt's own auth.conf",
)
_SUITE: Final = Shape(
    pattern=r"[A-Za-z0-9./~_-]+",
    expected="a suite such as `stable`",
    hint="`/` for a repository without suites",
)
_COMPONENT: Final = Shape(pattern=r"[A-Za-z0-9./~_-]+", expected="a component such as `main`")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryFile:
    """An entry of `apt_sources` in a recipe file. The text below each key is its description in the schema."""

    name: Annotated[str, _NAME]
    """The source of its packages in the lock, and of a mirror in ENVBUILDER_APT_MIRRORS."""
    url: Annotated[str, _URL]
    """Its address, as in apt's sources.list."""
    suite: Annotated[str, _SUITE]
    """Its suite; one that ends with `/` has no components."""
    components: tuple[Annotated[str, _COMPONENT], ...] = ()
    """Its components, such as [main]."""
    key: OwnFile
    """The file with the public key that signs it, armored or not; a path from the recipe's own folder."""


def _check_components(entry: RepositoryFile) -> Iterator[Mistake]:
    if entry.suite.endswith("/") and entry.components:
        message, hint = "a suite that ends with `/` has no components", "leave them out"
        yield Mistake(message=message, code=RecipeCode.PAIR, hint=hint, at=("suite",))
    elif not entry.suite.endswith("/") and not entry.components:
        hint = "`components: [main]`, as in the line that its makers give"
        yield Mistake(message="the suite has no components", code=RecipeCode.PAIR, hint=hint, at=("suite",))


def _check_names(entries: tuple[str | RepositoryFile, ...]) -> Iterator[Mistake]:
    names = [name_of(entry) for entry in entries]
    for at, name in enumerate(names):
        if name in names[:at]:
            yield Mistake(message=f"a second source `{name}`", hint="rename one", at=(at,))


Repositories = Annotated[
    tuple[
        Annotated[
            Annotated[str, NVIDIA, Tag("a text")]
            | Annotated[RepositoryFile, FieldRule(_check_components), Tag("a map")],
            Discriminator(lambda value: "a map" if isinstance(value, dict) else "a text"),
        ],
        ...,
    ],
    FieldRule(_check_names),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """An apt repository beside those of a base. It is trusted by its own keys alone."""

    name: str  # site; nvidia-ubuntu2004; image-cuda for one of a base image
    url: str  # with a final slash
    suite: str  # ends with `/` if it has no components
    components: tuple[str, ...]
    keys: tuple[str, ...] = ()  # files below the recipe's folder, or paths in the image
    sha256: str = ""  # of the recipe's key
    # Instead of files: where the key is below the address, and its fingerprint.
    published: tuple[str, str] | None = None

    @property
    def source(self) -> str:
        """Return the source of its packages in a lock."""
        return f"{APT}{self.name}"

    def canonical(self) -> dict[str, object]:
        """Return what decides a build, without the places of the keys."""
        return {key: value for key, value in asdict(self).items() if value and key != "keys"}


def name_of(entry: str | RepositoryFile) -> str:
    return entry.replace("/", "-") if isinstance(entry, str) else entry.name


def for_processor(one: Repository, processor: Processor) -> Repository:
    """Return the repository with the packages for a processor: NVIDIA has another for each, others have one for all."""
    if one.published != NVIDIA_KEY:
        return one
    return replace(one, url=f"{one.url.removesuffix(f'{X86_64.cuda}/')}{processor.cuda}/")


def make_repository(entry: str | RepositoryFile, folder: Path) -> Repository:
    """Return the repository of an entry. The recipe's folder has its key."""
    if isinstance(entry, str):
        url = f"{NVIDIA_REPOSITORIES}{entry.partition('/')[2]}/{X86_64.cuda}/"
        return Repository(name=name_of(entry), url=url, suite="/", components=(), published=NVIDIA_KEY)
    return Repository(
        name=entry.name, url=entry.url.rstrip("/") + "/", suite=entry.suite, components=entry.components,
        keys=(entry.key,), sha256=sha256_file(folder / entry.key),
    )  # fmt: skip
