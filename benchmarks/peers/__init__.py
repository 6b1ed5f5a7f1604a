"""Collectives of PyTorch's gloo, MultiWorkerMirroredStrategy and raw MPI, compared with tfring."""
