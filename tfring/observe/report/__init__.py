"""What the records of a job say of its speed: steps, waiting, slow ranks, as text and as a page.

`job_steps`, `changes` and `monitor` need numpy only; `text` needs rich, `plots` and `page` need
matplotlib (the extra `report`).
"""
