"""Tensors under emulation: methods, files and constructors that name CUDA."""
