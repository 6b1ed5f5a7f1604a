"""Benchmarks of tfring, side by side with raw Open MPI; `make bench` runs them all."""
