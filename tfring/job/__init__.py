"""What a process is in its job: who it is, the job's secrets, and how its ranks meet."""
