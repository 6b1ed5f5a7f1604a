"""What this process does when a signal comes while it waits for other ranks."""
