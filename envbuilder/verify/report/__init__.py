"""Where the bytes of an environment are: `sizes` counts them, `page` writes the HTML page."""
