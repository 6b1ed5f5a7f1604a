"""`tfring manifest`: manifests of jobs for Kubernetes."""
