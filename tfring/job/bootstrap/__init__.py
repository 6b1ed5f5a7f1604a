"""Connects the ranks of a job to each other, in Python, before the runtime starts."""
