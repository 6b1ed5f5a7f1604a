"""What this process can find out about GPUs and NCCL without TensorFlow."""
