"""One recipe becomes one environment: a Docker image and a SIF that hold the same files."""

__version__ = "0.1.0"
