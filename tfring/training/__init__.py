"""Reduced gradients for tapes and optimizers, built on the collectives."""
