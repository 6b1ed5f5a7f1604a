"""What the command line, a file and the environment say of a job."""
