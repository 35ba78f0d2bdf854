"""Where files come from: HTTP, package indexes, .debs, and the names of the sources that a lock may name."""
