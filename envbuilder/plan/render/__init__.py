"""Plan → text: a Dockerfile or a definition file that builds the same environment without envbuilder.

Rendering decides nothing and reads nothing: a `Kit` holds all of its data. The text quotes every value of a recipe. `stages` describes
the stages of all texts, `Dockerfile.base` among them.
"""
