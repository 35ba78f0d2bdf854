"""The runner that lets BuildKit make the layers, from a folder with a Dockerfile, the programs and their inputs."""
