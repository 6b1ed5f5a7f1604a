"""Elastic jobs under faults, without TensorFlow: what is lost, for how long, and what is left."""
