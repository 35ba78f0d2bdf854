"""The facts of one machine, and NCCL's settings for it with a reason each.

`rules` holds every rule, `decide` runs them, and `probe` reads the machine.

Every module here also runs inside the images, under the environment's own Python (3.8 or newer) with the standard
library alone, so that `envbuilder detect` and a job's start share one set of rules. Each is part of the key of the start
layer: what never runs in an image stands elsewhere, and tests keep it so.
"""
