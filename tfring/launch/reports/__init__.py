"""What is said of a job: how it failed, its exit report, its events."""
