"""From a SIF to running ranks: one readable script for Slurm, for machines reached by SSH, or for this machine.

`site` and `job` describe a job, and `prepare` makes one of a SIF or an image. `script` and `array` write it
as a script. `start` runs it, or submits it and asks Slurm about it. `lint` checks batch scripts that people
wrote themselves, read by `sbatch`.
"""
