"""Solutions of the museum of bugs: one repair for each room, of several that hold."""

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def validated(net, X, y):
    """Room 1. The bare network exchanges nothing."""
    loss = None
    if dist.get_rank() == 0:
        with torch.no_grad():
            loss = F.cross_entropy(net.module(X), y).item()
    dist.barrier()
    return loss


def summed_by_class(samples, classes, device):
    """Room 2. All ranks go through one list, whatever they have."""
    totals = dict.fromkeys(classes, 0.0)
    for label, loss in samples:
        totals[label] += loss
    for label in classes:
        total = torch.tensor(totals[label], device=device)
        dist.all_reduce(total)
        totals[label] = total.item()
    return totals


def trained_on_all(net, batches, optimizer):
    """Room 3. Who has no batch left answers the others' calls."""
    with net.join():
        for X in batches:
            optimizer.zero_grad()
            net(X).square().mean().backward()
            optimizer.step()


def trained_heads(net, X, tasks):
    """Room 4. DDP looks which parameters an output needs."""
    ddp = DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for task in tasks:
        optimizer.zero_grad()
        ddp(X, task).square().mean().backward()
        optimizer.step()


def restored(net, checkpoint):
    """Room 5. Only the first `module.` is the wrapper's."""
    bare = {
        name.removeprefix("module."): tensor
        for name, tensor in checkpoint.items()
    }
    net.load_state_dict(bare)


@torch.no_grad()
def validation_loss(net, batches):
    """Room 6. Without a graph nothing is kept."""
    total = 0
    for X, y in batches:
        total += F.cross_entropy(net(X), y)
    return total / len(batches)


def resumed(net, path):
    """Room 7. By way of the host; load_state_dict copies on."""
    checkpoint = torch.load(path, map_location="cpu")
    net.load_state_dict(checkpoint)
    dist.barrier()


def backward_over_tokens(net, pieces):
    """Room 8. Sums, divided by the number of all real tokens; times
    the ranks, by which DDP divides."""
    tokens = sum((y != -100).sum() for _, y in pieces)
    dist.all_reduce(tokens)
    for X, y in pieces:
        total = F.cross_entropy(net(X), y, reduction="sum")
        (total * dist.get_world_size() / tokens).backward()


def contrasted(features):
    """Room 9. Times the ranks, by which DDP divides."""
    world = dist.get_world_size()
    parts = [torch.empty_like(features) for _ in range(world)]
    dist.all_gather(parts, features)
    parts[dist.get_rank()] = features
    all_of_them = torch.cat(parts)
    return world * (all_of_them @ all_of_them.T).square().mean()


def orders_seen(data, epochs):
    """Room 10. The sampler is told the epoch."""
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=2, sampler=sampler)
    orders = [[] for _ in range(epochs)]
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            orders[epoch] += batch.tolist()
    return orders


def read_back(scores):
    """Room 11. The host waits for what it reads."""
    return scores.cpu().sum().item()


def handed_on(weights, biases):
    """Room 12. Both ranks call in one order."""
    for tensor in (weights, biases):
        if dist.get_rank() == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
