"""What else could be used in tfring's place, measured beside it."""
