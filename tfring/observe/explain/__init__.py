"""Says what is wrong with a job, from the records of its ranks: see `explain.explain`.

The files: `situation` answers questions about the records, `processes` looks at the ranks'
processes, `places` reads their stacks, `ends`, `transport`, `calls` and `pace` hold the rules,
`explain` asks them in order.
`at_trouble` and `launched` explain without being asked: stalls and jobs that break, and a
`tfring run` that has failed.
"""
