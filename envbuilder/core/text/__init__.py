"""What reads text with nothing but the standard library of Python 3.9, so that `diagnose` can be used alone."""
