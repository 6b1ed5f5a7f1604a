"""Gives every rank its part of the data."""
