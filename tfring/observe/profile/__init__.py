"""Where the ranks of a job spend their time, from samples of their stacks."""
