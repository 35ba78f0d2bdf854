"""The printer: a plan's programs as text. It adds nothing to what the programs do.

`dockerfile` writes the stages for BuildKit, with inputs from a folder or fetched by hash; `definition` writes the same for
Apptainer. `printed` has what both print.
"""
