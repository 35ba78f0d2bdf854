"""Layers → artifacts: the Docker image as an OCI layout, and the SIF with the same files.

`oci` writes, reads and describes images. `sif` and `squashfs` write and read SIFs. `docker_engine`
loads an image and runs it. `signing` and `statement` sign both artifacts. `outputs` names their
files and keeps the record of a build.
"""
