"""The docker engine: BuildKit makes the same layers, from a folder with a Dockerfile, the programs and their inputs."""
