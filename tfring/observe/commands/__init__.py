"""What the ``tfring`` command can do with running and ended jobs: one file for each command.

Each has `add_options(parser)` and `run(options)`, as `tfring.launch.cli.Command` says.
"""
