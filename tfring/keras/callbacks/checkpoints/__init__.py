"""Checkpoints of models: what they hold, and the callback that saves and restores while fitting."""
