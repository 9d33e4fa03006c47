"""torch's own names for groups, DTensors and DDP: what changes with a release of torch."""
