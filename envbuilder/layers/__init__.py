"""Trees as bytes: every tree has one spelling, so equal files give equal digests.

`layer` writes and reads the layers of a build, `entry` describes one path. `overlay` lays the layers of any
image over each other. `writer`, `import_tree` and `blob` belong to `layer`.
"""
