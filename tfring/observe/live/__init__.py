"""A job as it is now: `tfring top` and `tfring stacks`.

Everything comes from the records, which other processes can read at any time, so the job may hang.
Only stacks are asked of the ranks: see tfring/observe/recorder/stacks.py.
"""
