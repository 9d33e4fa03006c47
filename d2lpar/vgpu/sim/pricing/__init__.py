"""What a kernel costs on an accelerator."""
