"""The docker engine: the same layers by BuildKit, out of `image/Dockerfile.base` and a folder with all that it reads."""

from envbuilder.build.buildkit.engine import BuildKitEngine

__all__ = ["BuildKitEngine"]
