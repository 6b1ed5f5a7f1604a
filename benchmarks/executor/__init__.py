"""The executor alone, beside raw MPI and other builds of itself."""
