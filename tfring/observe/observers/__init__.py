"""What watches a rank while it is one: `ours` lists it, `observers` begins and ends it."""
