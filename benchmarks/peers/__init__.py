"""Collectives of PyTorch's gloo, MultiWorkerMirroredStrategy and raw MPI, beside tfring's."""
