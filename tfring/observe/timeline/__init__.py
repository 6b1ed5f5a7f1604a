"""The timeline of a job: what its ranks did when, in one file for Perfetto.

It is made from the records of ranks. `session` keeps what a job writes there while a timeline is
on; `draw` makes the file. Importing this loads neither TensorFlow nor the runtime.
"""
