"""Mistakes of a first day: the programs that make them, and what people are told."""
