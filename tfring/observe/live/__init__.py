"""A job as it is now: `tfring top` and `tfring stacks`.

Everything comes from the records, which other processes can read at any time, so the job does not
take part in it and may hang. For stacks, ranks are asked: see tfring/observe/recorder/stacks.py.
"""
