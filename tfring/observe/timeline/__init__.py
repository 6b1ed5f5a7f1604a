"""The timeline of a job: what its ranks did when, in one file for Perfetto.

It is made of the records of ranks (tfring/observe/recorder/). `session` keeps what a job writes
there while a timeline is on; `draw` makes the file. Importing this loads neither TensorFlow
nor the runtime.
"""
