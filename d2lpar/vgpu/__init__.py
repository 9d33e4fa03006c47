"""Virtual GPUs: real `torch.device("vgpu:i")`s with their own memory and a simulated clock."""
