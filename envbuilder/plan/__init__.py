"""Lock → plan: the ordered steps of a build as one text. The sha256 of that text is the build key.

`model` has the steps and the key, `contents` says what their layers hold, `site` adds what an image holds of its site. `render` writes the
plan as a Dockerfile or a definition file. `documents` compares the installed packages with the lock,
and describes the result: `sbom` lists its packages, `license` reads their licenses.
"""
