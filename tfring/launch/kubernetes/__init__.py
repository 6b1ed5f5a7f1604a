"""`tfring run --kubernetes`: a manifest for the job, in place of starting it."""
