"""How a process of an elastic job gets into one generation after another."""
