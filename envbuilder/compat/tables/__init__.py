"""The tables of versions as YAML, and one typed reader for each. `table` has what they share."""
