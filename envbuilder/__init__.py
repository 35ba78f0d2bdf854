"""One recipe becomes one environment: a Docker image and a SIF that hold the same files."""

import sys

if sys.platform != "linux":
    raise SystemExit("envbuilder runs on Linux alone")

__version__ = "0.1.0"
