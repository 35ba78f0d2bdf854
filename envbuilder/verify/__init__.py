"""Prove what was built: image, SIF and plan hold the same files.

`compare` proves it, `pair` remembers the result. `alone` verifies a SIF by what it carries. `audit` finds faults in a
tree that both agree about. `diff` shows how two locks, images or SIFs differ. `report` writes the page with all of it.
"""
