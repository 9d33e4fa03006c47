"""Good solutions of the challenges: par."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

import d2lpar as par


def toy_accumulate(gpu):
    """Batch by batch: each one's activations go before the next."""
    for batch in gpu.batches:
        for layer in gpu.layers:
            gpu.forward(layer, batch)
        for layer in reversed(gpu.layers):
            gpu.backward(layer, batch)
    for layer in gpu.layers:
        gpu.update(layer)


def toy_ddp(gpu):
    """Each layer's gradient is summed while those below go on."""
    down = gpu.layers[::-1]
    for mine in gpu.batches:
        for layer in gpu.layers:
            gpu.forward(layer, mine)
        for layer in down:
            gpu.backward(layer, mine)
            gpu.reduce_scatter(layer)
            gpu.all_gather("gradients", layer)
    for layer in down:
        gpu.update(layer)


def toy_zero_1(gpu):
    """While a layer goes backward, the one above it is gathered."""
    last = gpu.layers[-1]
    for mine in gpu.batches:
        for layer in gpu.layers:
            gpu.forward(layer, mine)
        for layer in gpu.layers[::-1]:
            gpu.backward(layer, mine)
            gpu.reduce_scatter(layer)
            if layer < last:
                gpu.update(layer + 1)
                gpu.all_gather("weights", layer + 1)
    gpu.update(0)
    gpu.all_gather("weights", 0)


def toy_fsdp(gpu):
    """While one layer computes, the next one's weights come."""
    last = gpu.layers[-1]
    for mine in gpu.batches:
        gpu.all_gather("weights", 0)
        for layer in gpu.layers:
            if layer < last:
                gpu.all_gather("weights", layer + 1)
            gpu.forward(layer, mine)
            if layer < last:
                gpu.free(layer)
        for layer in gpu.layers[::-1]:
            if layer > 0:
                gpu.all_gather("weights", layer - 1)
            gpu.backward(layer, mine)
            gpu.reduce_scatter(layer)
            gpu.free(layer)
    for layer in gpu.layers[::-1]:
        gpu.update(layer)


def toy_gpipe(gpu):
    """All batches forward, then all of them backward."""
    for batch in gpu.batches:
        gpu.recv(batch, gpu.before)
        for layer in gpu.layers:
            gpu.forward(layer, batch)
        gpu.send(batch, gpu.after)
    for batch in gpu.batches:
        gpu.recv(batch, gpu.after)
        for layer in gpu.layers[::-1]:
            gpu.backward(layer, batch)
        gpu.send(batch, gpu.before)
    for layer in gpu.layers:
        gpu.update(layer)


def toy_1f1b(gpu):
    """As many ahead as there are ranks from here on; then in turn."""

    def onward(batch):
        gpu.recv(batch, gpu.before)
        for layer in gpu.layers:
            gpu.forward(layer, batch)
        gpu.send(batch, gpu.after)

    def back(batch):
        gpu.recv(batch, gpu.after)
        for layer in gpu.layers[::-1]:
            gpu.backward(layer, batch)
        gpu.send(batch, gpu.before)

    ahead = gpu.ranks - gpu.rank
    for batch in gpu.batches[:ahead]:
        onward(batch)
    for batch in gpu.batches:
        back(batch)
        if batch + ahead < len(gpu.batches):
            onward(batch + ahead)
    for layer in gpu.layers:
        gpu.update(layer)


def spread(inputs, work, devices):
    """The largest first, to the GPU with the least work so far."""
    load, place = [0.0] * len(devices), {}
    for i in sorted(
        range(len(inputs)), key=lambda i: -inputs[i].shape[0]
    ):
        place[i] = load.index(min(load))
        load[place[i]] += inputs[i].shape[0] ** 3
    there = {
        i: inputs[i].to(devices[g], non_blocking=True)
        for i, g in place.items()
    }
    done = {i: work(X) for i, X in there.items()}
    back = {
        i: Y.to(devices[0], non_blocking=True)
        for i, Y in done.items()
    }
    return [back[i] for i in range(len(inputs))]


def broadcast(x, devices):
    """A tree: all who have it hand it on."""
    copies = [x]
    while len(copies) < len(devices):
        for source in copies[: len(devices) - len(copies)]:
            copies.append(
                source.to(devices[len(copies)], non_blocking=True)
            )
    return copies


def three_lanes(inputs, outputs, work, device):
    """A stream for each direction, and events between them."""
    vgpu = torch.get_device_module(device)
    computing = vgpu.current_stream(device)
    incoming, outgoing = vgpu.Stream(device), vgpu.Stream(device)
    there = []
    for X in inputs:
        with vgpu.stream(incoming):
            there.append(
                (
                    X.to(device, non_blocking=True),
                    incoming.record_event(),
                )
            )
    for (X, arrived), output in zip(there, outputs, strict=True):
        computing.wait_event(arrived)
        X.record_stream(computing)
        Y = work(X)
        outgoing.wait_event(computing.record_event())
        with vgpu.stream(outgoing):
            output.copy_(Y, non_blocking=True)
        Y.record_stream(outgoing)
    vgpu.synchronize(device)


def unsynced(weights, batches, rate):
    """Losses stay on the GPU until the end."""
    losses = []
    for X, y in batches:
        hidden = F.relu(F.relu(X @ weights[0]) @ weights[1])
        loss = ((hidden @ weights[2] - y) ** 2).mean()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for W, gradient in zip(weights, gradients, strict=True):
                W -= rate * gradient
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def relay(inputs, first, second, devices):
    """Copies on a stream of their own, with events around each."""
    vgpu = torch.get_device_module(devices[0])
    sending = vgpu.Stream(devices[0])
    working = [vgpu.current_stream(device) for device in devices]
    results = []
    for X in inputs:
        Y = first(X)
        sending.wait_event(working[0].record_event())
        with vgpu.stream(sending):
            Z = Y.to(devices[1], non_blocking=True)
        Y.record_stream(sending)
        working[1].wait_event(sending.record_event())
        results.append(second(Z))
    return results


def sum_gradients(gradients, devices):  # noqa: ARG001
    """One flat bucket for each GPU, summed by a ring."""
    flat = [
        torch.cat([g.flatten() for g in own]) for own in gradients
    ]
    par.collectives.all_reduce_ring(flat)
    for own, bucket in zip(gradients, flat, strict=True):
        pieces = bucket.split([g.numel() for g in own])
        for g, piece in zip(own, pieces, strict=True):
            g.copy_(piece.view(g.shape))


def unstuck(gradients):
    """Agree on the rounds; a rank without a gradient adds zeros."""
    device = (
        gradients[0].device
        if gradients
        else f"vgpu:{dist.get_rank()}"
    )
    most = torch.tensor([len(gradients)], device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    size = torch.tensor(
        [gradients[0].numel() if gradients else 0], device=device
    )
    dist.all_reduce(size, op=dist.ReduceOp.MAX)
    means = []
    for k in range(int(most)):
        has = k < len(gradients)
        total = (
            gradients[k].clone()
            if has
            else torch.zeros(int(size), device=device)
        )
        count = torch.tensor([float(has)], device=device)
        dist.all_reduce(total)
        dist.all_reduce(count)
        means.append(total / count)
    return means


def schedule(rank, ranks, micro_batches):
    """1F1B."""
    ahead = min(micro_batches, ranks - 1 - rank)
    order = [("F", m) for m in range(ahead)]
    for m in range(micro_batches - ahead):
        order += [("F", ahead + m), ("B", m)]
    return order + [
        ("B", m) for m in range(micro_batches - ahead, micro_batches)
    ]


def cut(seconds, sent_bytes, stages):
    """The cut with the smallest slowest stage, sending included."""
    layers = len(seconds)

    def cuts(start, left):
        if left == 1:
            yield [layers - start]
            return
        for end in range(start + 1, layers - left + 2):
            for rest in cuts(end, left - 1):
                yield [end - start, *rest]

    def slowest(counts):
        longest, start = 0.0, 0
        for count in counts:
            end = start + count
            sending = (
                sent_bytes[end - 1] / 1e9 if end < layers else 0.0
            )
            longest = max(
                longest, 3 * sum(seconds[start:end]), sending
            )
            start = end
        return longest

    return min(cuts(0, stages), key=slowest)


def recompute(seconds, kept_bytes, capacity_bytes):
    """Of all plans that fit, the one with the least to recompute."""
    room, best = 7 / 8 * capacity_bytes, None
    for number in range(2 ** len(seconds)):
        plan = [bool(number >> i & 1) for i in range(len(seconds))]
        needs = sum(
            kept / 4 if again else kept
            for kept, again in zip(kept_bytes, plan, strict=True)
        )
        extra = sum(
            s for s, again in zip(seconds, plan, strict=True) if again
        )
        if needs <= room and (best is None or extra < best[0]):
            best = extra, plan
    return best[1]


def mix(model, machine, gpus, batch):
    """Tensor groups as small as fits, the rest ZeRO 1."""
    planner = par.planner
    network = planner.model(model)
    there = (
        0.9
        * par.machines.machine(machine).accelerators[0].memory_bytes
    )
    for tensor in (1, 2, 4, 8):
        for recompute in ("none", "selective", "full"):
            mesh = planner.Mesh(gpus // tensor, 1, tensor)
            layout = planner.Layout(
                mesh,
                1,
                batch // mesh.data,
                recompute=recompute,
                zero=1,
            )
            if planner.memory(network, layout).total_bytes <= there:
                return layout
    return None


def small_gpt(tokens, parts):
    """Words and places, the blocks, and the words again."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    x = parts.words(tokens) + parts.places(places)
    for block in parts.blocks:
        x = block(x)
    return parts.norm(x) @ parts.words.weight.T


def train_on_ranks(net, loss, batches, optimizer):
    """A share each, one bucket of gradients, the same step."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        mine = loss(net, batch.chunk(ranks)[rank])
        mine.backward()
        gradients = [p.grad for p in net.parameters()]
        flat = torch.cat(
            [g.flatten() for g in gradients] + [mine.detach().view(1)]
        )
        dist.all_reduce(flat)
        flat /= ranks
        pieces = flat.split([g.numel() for g in gradients] + [1])
        for g, piece in zip(gradients, pieces, strict=False):
            g.copy_(piece.view(g.shape))
        losses.append(pieces[-1])
        optimizer.step()
    return torch.cat(losses).tolist()


def read_timeline(timeline):
    """What GPU 0 exchanges, less what it computes meanwhile."""
    exchanged = timeline.on("vgpu:0", "copy", "collective")
    hidden = exchanged.overlap_s(timeline.on("vgpu:0", "compute"))
    return (exchanged.busy_s - hidden) / timeline.duration_s


def mixes(model, machine, batch):
    """The planner's first."""
    found = par.planner.plans(model, machine, batch=batch, zero=1)
    return par.planner.best(found).layout


def rent(hours, price, most_per_hour, most_hours):
    """What is allowed, then fewest dollars, then fewest hours."""
    allowed = [
        gpus
        for gpus, needed in hours.items()
        if gpus * price <= most_per_hour and needed <= most_hours
    ]
    return min(
        allowed,
        key=lambda gpus: (gpus * hours[gpus], hours[gpus]),
        default=None,
    )
