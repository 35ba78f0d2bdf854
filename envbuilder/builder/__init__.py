"""Plan → layers → artifacts: the part of the story that takes minutes.

`pipeline` is the whole build, read top to bottom. `context` holds the store, the programs and the settings of a command, and what a user
may name for a build. `job` is the plan with its layers, and the interface of a runner; `sandbox` and `buildkit` are the two runners.
`extensions` compiles the extensions of a recipe. `batch` builds several recipes at once. `upkeep` looks after the cache.
`render` gathers the data of a rendered Dockerfile or definition file.
"""
