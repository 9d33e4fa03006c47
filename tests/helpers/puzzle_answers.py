"""Answers to puzzles that are no solutions of the course's, so that they earn points."""

RENT = """def rent(hours, price, most_per_hour, most_hours):
    best = None
    for gpus in sorted(hours, reverse=True):
        if gpus * price > most_per_hour or hours[gpus] > most_hours:
            continue
        if best is None or gpus * hours[gpus] < best * hours[best]:
            best = gpus
    return best
"""
DDP = """def toy_ddp(gpu):
    (batch,) = gpu.batches
    for layer in gpu.layers:
        gpu.forward(layer, batch)
    for layer in reversed(gpu.layers):
        gpu.backward(layer, batch)
        gpu.reduce_scatter(layer)
        gpu.all_gather("gradients", layer)
    for layer in reversed(gpu.layers):
        gpu.update(layer)
"""
