"""Readers of what a project or a machine has; each fills the requests of `init`."""
