"""The functions of torch that are replaced when virtual devices are registered."""
