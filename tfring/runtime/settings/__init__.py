"""Settings: one table of them, and how tfring reads them from the environment."""
