"""A rank's metrics for Prometheus and TensorBoard.

They are computed from the rank's record and the runtime's counters at each scrape.
Importing this loads neither TensorFlow nor prometheus_client.
"""
