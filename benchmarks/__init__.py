"""Benchmarks of tfring with goals, side by side with raw Open MPI; `make bench` runs them all.

Code that they share with `tfring bench` is in `tfring/bench`.
"""
