"""Code written for CUDA, run as it stands on virtual GPUs."""
