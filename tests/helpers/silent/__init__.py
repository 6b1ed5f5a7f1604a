"""Small programs that test tfring's promise: results equal one process, or tfring says why not."""
