"""Says what is wrong with a job, from the records of its ranks: see `explain.explain`.

The files: `situation` answers questions about the records, `processes` looks at the ranks'
processes, `ends`, `transport`, `calls` and `pace` hold the rules, `explain` asks them in order.
"""
