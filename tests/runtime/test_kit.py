"""The programs that make an environment inside a container."""

import subprocess

import pytest

from envbuilder import runtime as image


@pytest.mark.programs
def test_packages_are_added_in_a_container_and_nowhere_else():
    """It changes the root that it runs in: this machine's."""
    script = image.path("kit/add_packages.sh")
    ended = subprocess.run(["sh", script, "/nonexistent"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "first process of a container" in ended.stderr
