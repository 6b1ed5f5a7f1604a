"""The numbers of a rank for other programs: Prometheus and TensorBoard.

They are computed from the record of this rank and the runtime's counters when somebody asks.
Importing this loads neither TensorFlow nor prometheus_client.
"""
