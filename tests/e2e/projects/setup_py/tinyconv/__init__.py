from tinyconv.core import scale, twice

__all__ = ["scale", "twice"]
