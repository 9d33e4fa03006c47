"""Virtual GPUs: real `torch.device("vgpu:i")`s with their own memory and a simulated clock."""

OLDEST_TORCH = (2, 10)  # the first that registers a device backend written in Python
