"""What becomes of the output of the ranks: on the terminal, and in files."""
