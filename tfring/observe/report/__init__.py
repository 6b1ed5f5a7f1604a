"""What the records of a job say of its speed: steps, waiting, slow ranks, as text and as a page.

Reads records only (tfring/observe/recorder/), so it works while the job runs and when it is over.
The functions in job_steps, changes and monitor need numpy alone; text needs rich, and plots and
page need matplotlib (the extra `report`).
"""
