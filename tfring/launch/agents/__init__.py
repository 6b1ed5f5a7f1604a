"""What runs on each host of a job beside its ranks: one agent."""
