"""The programs of the frameworks: each runs in the environment of its framework."""
