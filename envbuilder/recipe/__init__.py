"""What a person writes: a YAML recipe → `Recipe`, with every mistake at its line and column.

`model` has the keys of a recipe and `extension` those of an extension; `fields` has the shapes that
several keys share. `load` reads a file.
"""
