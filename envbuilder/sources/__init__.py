"""Where files come from: HTTP, package indexes, git, .debs, and the names of the sources that a lock may name."""
