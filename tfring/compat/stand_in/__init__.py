"""The folder to put on the import path; see tfring.compat."""
