"""What runs on each host of a job: one agent per host, and one per rank under it."""
