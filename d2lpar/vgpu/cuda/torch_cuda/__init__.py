"""`torch.cuda` and what belongs to it, answered by virtual GPUs."""
