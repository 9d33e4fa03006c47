"""What `torch.nn` does otherwise with virtual tensors."""
