"""Connections between processes that prove to each other that they know one secret."""
