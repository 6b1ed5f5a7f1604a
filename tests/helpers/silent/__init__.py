"""Small programs that hold tfring to its promise: equal to one process, or a word about it."""
