"""The TensorFlow ops: loading their library, building, naming and differentiating them."""
