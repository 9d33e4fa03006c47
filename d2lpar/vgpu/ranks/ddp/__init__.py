"""DistributedDataParallel: wrapper and buckets; gradients are exchanged in backward."""
