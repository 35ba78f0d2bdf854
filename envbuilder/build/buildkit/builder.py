"""What a person says of the builder that the docker engine drives."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Where BuildKit runs and what it may reuse; it decides where layers are made, never their bytes."""

    name: str = ""  # of buildx; "" for the one in use
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    no_cache: bool = False

    def given(self) -> tuple[tuple[str, ...], ...]:
        """Each option that was given, with its value, as `docker buildx build` takes it and as ours is called."""
        return (
            *((("--builder", self.name),) if self.name else ()),
            *(("--cache-from", one) for one in self.cache_from),
            *(("--cache-to", one) for one in self.cache_to),
            *((("--no-cache",),) if self.no_cache else ()),
        )
