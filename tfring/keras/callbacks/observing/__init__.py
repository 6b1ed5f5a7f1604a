"""Callbacks that look at how fast the ranks are."""
