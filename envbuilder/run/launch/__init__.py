"""From a SIF to running ranks: one readable script for Slurm, for machines reached by SSH, or for this machine.

`site` and `job` hold what is wanted. `script`, `sbatch` and `array` turn it into a script. `start`
submits or runs it. `lint` checks batch scripts that people wrote themselves.
"""
