"""What the records of a job say of its speed: steps, waiting, slow ranks."""
