"""Recipe → lock: every choice made, every file named by sha256 and source.

`model` says what a lock holds, `file` reads, writes and seals it, and refuses a stale one, `diff` compares two. `resolve`
makes the choices, `inspect_image` reads the image that a recipe stands on, `source_files` digests an extension's
own sources.
"""
