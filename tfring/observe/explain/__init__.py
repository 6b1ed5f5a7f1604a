"""Says what is wrong with a job, from the records of its ranks: see `explain.explain`.

`situation` answers questions about the records, `processes` looks at the processes, `places` reads
stacks, and `ends`, `transport`, `calls` and `pace` hold the rules, which `explain` asks in order.
`at_trouble` and `launched` explain unasked: stalls, jobs that break, and a failed `tfring run`.
"""
