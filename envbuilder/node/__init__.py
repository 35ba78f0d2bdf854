"""The machine that a job runs on: facts, NCCL rules, `detect`, `doctor` and `diagnose`.

Others use `detect` (facts and settings of a machine), `doctor` (checks with repairs), `diagnose` (failures in logs, and the
messages of compilers), and `nccl` (facts, rules, profiles). `nccl` is also part of every image, so it needs only the
standard library of Python 3.8.
"""
