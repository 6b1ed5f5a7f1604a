"""The records that every rank keeps of what it calls and runs: where they are, how to read them.

The runtime writes them (ops/runtime/recorder/); everything here only reads. Importing this loads
neither TensorFlow nor the runtime, so records can be read on another machine and after the job.
"""
