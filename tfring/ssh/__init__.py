"""How other hosts are reached: with the system's ssh and the user's keys."""
