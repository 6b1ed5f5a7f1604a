"""Reads the records that the ranks keep of their calls and plans; the C++ runtime writes them.

Importing this loads neither TensorFlow nor the runtime, so a record can be read on another host and
after the job.
"""
