"""What the launcher tells of a job: how it failed, its exit report, its events."""
