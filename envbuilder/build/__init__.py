"""Plan → layers → artifacts: the part of the story that takes minutes.

`pipeline` is the whole of it, read top to bottom; `context` holds what every command works with. `engine` says what a build asks
of an engine; `assemble` and `buildkit` are the two engines, and `extensions` compiles what a recipe names. `batch` builds several
recipes at once. `render` gathers what a rendered Dockerfile or definition file is written from.
"""
