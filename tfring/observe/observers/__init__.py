"""What watches a rank from init to shutdown: `ours` lists it, `observers` begins and ends it."""
