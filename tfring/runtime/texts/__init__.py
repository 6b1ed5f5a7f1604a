"""How lists of ranks and numbers of bytes are written for people, the same everywhere."""
