"""The engines by name, for those who only have to name them: the command line answers in no time."""

from enum import StrEnum


class EngineName(StrEnum):
    """Who makes the layers of a build."""

    ASSEMBLE = "assemble"
    DOCKER = "docker"
