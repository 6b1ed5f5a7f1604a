"""Connections between processes that prove to each other to know the same secret."""
