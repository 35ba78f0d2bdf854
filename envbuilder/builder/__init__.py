"""Plan → layers → artifacts: the part of the story that takes minutes.

`pipeline` is the whole build, read top to bottom. `context` holds the store, the programs and the settings of a command. `choice` is
what a user may name for a build, and `result` what comes of it. `engine` is the interface of an engine; `assemble` and `buildkit` are the
two engines. `extensions` compiles the extensions of a recipe. `batch` builds several recipes at once. `render` gathers the data of a
rendered Dockerfile or definition file.
"""
