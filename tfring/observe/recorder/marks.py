"""Marks in the record of rank 0 that other processes look for."""

EQUAL = "all ranks had equal weights at the end of fit"
ROUNDED = "the ranks' weights differed by rounding at the end of fit"
