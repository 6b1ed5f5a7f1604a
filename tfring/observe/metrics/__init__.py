"""What a rank does, in numbers for other programs: Prometheus and TensorBoard.

Everything is computed from the record of this rank and the runtime's counters when somebody asks
for it, so a job in which nobody asks pays nothing. Importing this loads neither TensorFlow nor the
libraries that numbers are given to.
"""
