"""Run what was built: on this machine, on a cluster, in an editor.

`exec` runs commands and shells in the SIF or in the image, with the options of `container`.
`launch` starts ranks on nodes. `modulefile`, `ssh_session` and `devcontainer` bring an environment
to `module load`, to SSH and to VS Code.
"""
