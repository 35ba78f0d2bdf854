"""Where the programs of steps run: the sandbox, with its toolbox and with programs of other processors."""
