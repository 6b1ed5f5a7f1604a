"""Writes ranks, sizes, times and errors for people, the same everywhere."""
