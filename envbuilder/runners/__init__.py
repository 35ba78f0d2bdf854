"""Where the programs of steps run: the sandbox with its toolbox, and the emulation of other processors."""
