"""The machine that a job runs on: `detect` (facts and NCCL's settings), `doctor` (checks with repairs), `pasted` (saved outputs).

`nccl` is also part of every image, so it needs only the standard library of Python 3.8, and holds only what runs there.
"""
