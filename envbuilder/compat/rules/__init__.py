"""The rules of `check`, by subject: pins, compilers, wheels, the host's driver, and base images."""
