"""Where the bytes of an environment are: `sizes` counts them, `treemap` draws them, `page` writes the HTML page."""
