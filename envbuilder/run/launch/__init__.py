"""From a SIF to running ranks: one readable script for Slurm, for machines reached by SSH, or for this machine.

`site` and `job` say what is wanted, `slurm`, `ssh` and `local` turn it into the text of a script, `start` submits or runs
that, and `lint` reads scripts that people wrote themselves. Only `start` and `inside` do anything; the rest is text.
"""
