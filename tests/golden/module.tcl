#%Module1.0
proc ModulesHelp {} { puts stderr "PyTorch 2.6.0 with CUDA 12.4, in /shared/my env/a100.sif: python, python3, torchrun, nvcc, and other programs through a100-exec" }
module-whatis "PyTorch 2.6.0 with CUDA 12.4, in /shared/my env/a100.sif"
module load "apptainer/1.3"
prepend-path PATH "/shared/modules/commands/a100"
