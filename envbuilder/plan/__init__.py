"""Lock → plan: the ordered steps of a build as one text. The sha256 of that text is the build key.

`model` has the steps and the key, `make` puts them in order, `contents` lists the files of the runtime layer. `shell` has the rules for
variables of the user's shell. `printer` writes the plan as a Dockerfile or a definition file. `documents` compares the installed
packages with the lock and writes provenance and SBOM: `sbom` lists the packages with their licenses.
"""
