"""The executor alone, compared with raw MPI and other builds of itself."""
