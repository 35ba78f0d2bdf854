"""Base images: the facts found inside an image, each with its source."""
