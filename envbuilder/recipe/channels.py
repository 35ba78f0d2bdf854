"""The key `conda`: packages of conda channels, beside those of pip."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Final
from urllib.parse import urlsplit

from envbuilder.core.models import Mistake, Shape
from envbuilder.recipe.fields import RecipeCode
from envbuilder.recipe.wheel_sources import ADDRESS
from envbuilder.sources.names import CHANNEL as SOURCE

CHANNEL: Final = Shape(
    pattern=rf"(?!.*/t/[^/]+/)(?:{ADDRESS})",  # anaconda.org has tokens in the path
    expected="the address of a channel by https, without user, password and token",
    hint="such as https://conda.anaconda.org/conda-forge; a login belongs in `~/.netrc`",
)
NAME: Final = Shape(pattern=r"[A-Za-z0-9_][A-Za-z0-9_.-]*", expected="the name of a package of conda")
_SPEC: Final = Shape(
    pattern=rf"{NAME.pattern}(?:[ =<>!~][A-Za-z0-9_.*+!<>=,|~ -]*)?",
    expected="a package of conda, such as `ffmpeg`, `ffmpeg=6` or `ffmpeg>=6,<8`",
    hint="channels stand under `channels`, not before the name",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conda:
    """The key `conda` of a recipe. The text below each key is its description in the schema."""

    channels: tuple[Annotated[str, CHANNEL], ...] = ()
    """The addresses of the channels; a package comes from the first that has its name, and there is no default."""
    packages: tuple[Annotated[str, _SPEC], ...] = ()
    """Packages as conda writes them: `ffmpeg`, `ffmpeg=6`, `ffmpeg>=6,<8`; the lock fixes each version and file."""
    allow_scripts: tuple[Annotated[str, NAME], ...] = ()
    """The packages whose post-link script may run; a package that has one and is not here is refused."""

    @property
    def sources(self) -> dict[str, str]:
        """Return source in a lock → address with a final slash, in the order of the channels."""
        return {source_of(channel): f"{channel.rstrip('/')}/" for channel in self.channels}

    def canonical(self) -> dict[str, object]:
        return asdict(self) | {"allow_scripts": sorted(set(self.allow_scripts))}


NO_CONDA: Final = Conda()
CONDA_PREFIX: Final = "/opt/conda-env"  # not /opt/conda, which images have
CONDA_BIN: Final = f"{CONDA_PREFIX}/bin"


def source_of(channel: str) -> str:
    """Return the source of a channel's packages in a lock: `channel-conda-forge`. It does not name the host."""
    path = re.sub(r"[^a-z0-9]+", "-", urlsplit(channel).path.lower()).strip("-")
    return f"{SOURCE}{path or 'main'}"


def check_conda(conda: Conda) -> Iterator[Mistake]:
    if bool(conda.channels) != bool(conda.packages):
        missing, given = ("packages", "channels") if conda.channels else ("channels", "packages")
        hint = "`channels: [https://conda.anaconda.org/conda-forge]`, `packages: [ffmpeg=6]`"
        message = f"`{given}` needs `{missing}`"
        yield Mistake(message=message, code=RecipeCode.PAIR, hint=hint, at=(given,))
    sources = [source_of(channel) for channel in conda.channels]
    for at, source in enumerate(sources):
        if source in sources[:at]:
            message = f"a second channel with the path of `{conda.channels[sources.index(source)]}`"
            hint = "leave one out: the lock names a channel by its path, and `ENVBUILDER_CONDA_MIRRORS` names mirrors"
            yield Mistake(message=message, hint=hint, at=("channels", at))
    if conda.allow_scripts and not conda.packages:
        yield Mistake(message="`allow_scripts` needs `packages`", code=RecipeCode.PAIR, at=("allow_scripts",))
