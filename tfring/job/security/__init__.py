"""Secrets, the keys made from them, and proofs that a message comes from a rank of the job."""
