"""Mistakes of a first day: the programs that make them, and the expected messages."""
