"""Finds out whether ranks, or runs, have equal values, and where they first differ."""
