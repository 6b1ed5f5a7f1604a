"""`tfring run` and `tfring doctor`."""
