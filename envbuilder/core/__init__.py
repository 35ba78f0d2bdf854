"""What every other folder uses: `errors`, `findings`, `process`, `console`, `cache` and `system`.

`places` and `models` read JSON and YAML with the place of every mistake. `beneath`, `archive`, `budget` and `private` read
and write what others may have made.
"""
