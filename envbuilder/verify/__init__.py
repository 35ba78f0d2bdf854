"""Prove what was built: image, SIF and plan hold the same files.

`compare` proves it, `subjects` reads what is compared, `proof` remembers the result. `audit` finds faults
in a tree that both agree about. `diff` shows how two locks, images or SIFs differ. `report` draws where the
bytes are. `fatbin` reads a library's GPU code.
"""
