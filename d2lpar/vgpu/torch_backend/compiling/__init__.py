"""What `torch.compile` makes of a program: fused kernels."""
