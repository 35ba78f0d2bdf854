"""HTTP with patience: `session` sends requests and retries, `transfer` resumes downloads, `failure` says what went wrong.

`file_urls` reads `file:` URLs like any other. `reachable` asks whether sources answer.
"""
