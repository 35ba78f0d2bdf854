"""Plan → text: a Dockerfile or a definition file that builds the same environment without envbuilder.

Rendering decides nothing and reads nothing: a `Kit` holds what a build does. Every value of a recipe is data in the text, whatever
it holds. `stages` describes the stages of all texts; `Dockerfile.base` is written from it, too.
"""
