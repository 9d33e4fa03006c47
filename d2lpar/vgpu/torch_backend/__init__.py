"""Virtual GPUs as a device of torch: the only room that touches torch's private names."""
