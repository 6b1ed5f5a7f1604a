"""Elastic jobs under faults, without TensorFlow: what they lose, and how long they take to recover."""
