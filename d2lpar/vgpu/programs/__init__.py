"""Programs of others, run as they stand on virtual GPUs, and what that took: `d2lpar run`."""
