"""Process groups: what `torch.distributed` hands to them, and the work that comes of it."""
