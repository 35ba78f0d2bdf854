"""From a SIF to running ranks: one readable script for Slurm, for machines reached by SSH, or for this machine.

`site` and `job` describe a job, and `prepare` makes one of a SIF or an image. `script` and `array` write it
as a script. `start` submits or runs it, and `slurm` asks Slurm about partitions and jobs. `lint` checks batch
scripts that people wrote themselves, read by `sbatch`.
"""
