"""The two ends of a TCPStore."""
