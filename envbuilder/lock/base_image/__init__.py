"""Base images: what a registry says of an image, and the facts found inside, each with its source."""
