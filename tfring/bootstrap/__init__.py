"""Brings the ranks of a job together and connects them, in Python, before the runtime starts."""
