"""Which hosts a job runs on, and which rank on which of them."""
