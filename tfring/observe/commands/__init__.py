"""The ``tfring`` commands for running and ended jobs, one file each.

Each has `add_options(parser)` and `run(options)`, as `tfring.launch.cli.Command` says.
"""
