"""What every other folder uses: `errors`, `findings`, `process`, `console`, `cache` and `limits`.

`http` sends requests and goes on with broken downloads. `sources` finds the mirrors and indexes of
this machine; `fetch` gets locked artifacts from them. `places` and `models` read JSON and YAML with
the place of every mistake.
"""
