"""Elastic jobs under faults, without TensorFlow: losses, and times to recover."""
