"""`torch.vgpu`: streams, events, graphs, random numbers, autocast."""
