"""NCCL and the copies of `nn.DataParallel`."""
