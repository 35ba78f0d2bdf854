"""An image that a recipe stands on: what a registry says of it, and what was found inside, as facts with their places."""
