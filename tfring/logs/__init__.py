"""What tfring logs in Python, as one log with what its runtime logs."""
