help("PyTorch 2.6.0 with CUDA 12.4, in /shared/my env/a100.sif: python, python3, torchrun, nvcc, and other programs through a100-exec")
whatis("PyTorch 2.6.0 with CUDA 12.4, in /shared/my env/a100.sif")
family("envbuilder") -- loading another environment unloads this one
depends_on("apptainer/1.3")
prepend_path("PATH", "/shared/modules/commands/a100")
