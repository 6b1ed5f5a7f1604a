"""The TensorFlow ops: load their library, build, name and differentiate them."""
