"""Lock → plan: the ordered steps of a build as one text. The sha256 of that text is the build key.

`model` has the steps and the key, `contents` lists the files of their layers, `site` adds the files of a site. `shell` has the rules
for variables of the user's shell. `render` writes the plan as a Dockerfile or a definition file. `documents` compares the installed
packages with the lock and writes provenance and SBOM: `sbom` lists the packages, `license` reads their licenses.
"""
