"""One recipe becomes one environment: a Docker image and a SIF that hold the same files."""

import sys

if sys.platform != "linux":
    raise SystemExit(f"envbuilder runs on Linux, and this is {sys.platform}")

__version__ = "0.1.0"
