"""The docker engine: BuildKit makes the same layers, from `Dockerfile.base` and a folder of inputs."""

from envbuilder.builder.buildkit.engine import BuildKitEngine

__all__ = ["BuildKitEngine"]
