"""The best solutions of the challenges that we know: records. No student's copy has them."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

import d2lpar as par


def sum_gradients(gradients, devices):  # noqa: ARG001
    """A tree; each gradient becomes a view of its bucket."""
    flat = [torch.cat([g.flatten() for g in own]) for own in gradients]
    par.collectives.all_reduce_tree(flat)
    for own, bucket in zip(gradients, flat, strict=True):
        pieces = bucket.split([g.numel() for g in own])
        for g, piece in zip(own, pieces, strict=True):
            g.data = piece.view(g.shape)


def unsynced(weights, batches, rate):
    """Backward by hand: gradient and update in one kernel."""
    losses = []
    with torch.no_grad():
        A, B, C = weights
        for X, y in batches:
            h = F.relu(X @ A)
            k = F.relu(h @ B)
            out = torch.addmm(y, k, C, beta=-1)
            losses.append(F.mse_loss(out, torch.zeros_like(out)))
            d = out.mul_(2 / out.numel())
            e = torch.ops.aten.threshold_backward(d @ C.T, k, 0)
            f = torch.ops.aten.threshold_backward(e @ B.T, h, 0)
            C.copy_(torch.addmm(C, k.T, d, alpha=-rate))
            B.copy_(torch.addmm(B, h.T, e, alpha=-rate))
            A.copy_(torch.addmm(A, X.T, f, alpha=-rate))
    return torch.stack(losses).tolist()


def schedule(rank, ranks, micro_batches):
    """Zero bubble (ZB-H1): weights' gradients fill the gaps."""
    ahead = min(micro_batches, ranks - 1 - rank)
    order = [("F", m) for m in range(ahead)]
    for m in range(micro_batches):
        if ahead + m < micro_batches:
            order.append(("F", ahead + m))
        order.append(("I", m))
        if m >= rank:
            order.append(("W", m - rank))
    return order + [("W", m) for m in range(max(0, micro_batches - rank), micro_batches)]


def train_on_ranks(net, loss, batches, optimizer):
    """Gradients are views of one bucket; losses are summed once."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parameters = list(net.parameters())
    flat = torch.zeros(
        sum(p.numel() for p in parameters),
        device=parameters[0].device,
    )
    for p, piece in zip(
        parameters,
        flat.split([p.numel() for p in parameters]),
        strict=True,
    ):
        p.grad = piece.view(p.shape)
    losses = []
    for batch in batches:
        flat.zero_()
        mine = loss(net, batch.chunk(ranks)[rank])
        mine.backward()
        losses.append(mine.detach())
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        optimizer.step()
    losses = torch.stack(losses)
    dist.all_reduce(losses, op=dist.ReduceOp.AVG)
    return losses.tolist()


def spread(inputs, work, devices):
    """The largest first; GPU 0 gets a little less.

    Results go back at the end: GPU 0 waits for each copy.
    """
    load, place, done = [0.5e9] + [0.0] * (len(devices) - 1), {}, {}
    order = sorted(range(len(inputs)), key=lambda i: -inputs[i].shape[0])
    for i in order:
        place[i] = load.index(min(load))
        load[place[i]] += inputs[i].shape[0] ** 3 + (3e8 if place[i] else 0.0)
        done[i] = work(inputs[i].to(devices[place[i]], non_blocking=True))
    for i in order:
        done[i] = done[i].to(devices[0], non_blocking=True)
    return [done[i] for i in range(len(inputs))]


def broadcast(x, devices):
    """Two chains, in seven pieces: hand on while more comes."""
    vgpu = torch.get_device_module(x.device)
    edges = [(0, 1), (1, 2), (0, 3), (2, 4), (3, 5), (5, 6), (4, 7)]
    copies = [x] + [torch.empty(x.shape, device=device) for device in devices[1:]]
    pieces = [copy.chunk(7) for copy in copies]
    streams = {edge: vgpu.Stream(devices[edge[0]]) for edge in edges}
    arrived = {}
    for k in range(7):
        for source, target in edges:
            stream = streams[source, target]
            if source:
                stream.wait_event(arrived[source, k])
            with vgpu.stream(stream):
                pieces[target][k].copy_(pieces[source][k], non_blocking=True)
                arrived[target, k] = stream.record_event()
    for (target, _), event in arrived.items():
        vgpu.current_stream(devices[target]).wait_event(event)
    return copies


def unstuck(gradients):
    """Two collectives: each sum carries the count of its ranks."""
    device = gradients[0].device if gradients else f"vgpu:{dist.get_rank()}"
    numbers = gradients[0].numel() if gradients else 0
    most = torch.tensor([len(gradients), numbers], device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    rounds, numbers = most.tolist()
    total = torch.zeros(rounds, numbers + 1, device=device)
    for k, gradient in enumerate(gradients):
        total[k, :-1] = gradient
        total[k, -1] = 1
    dist.all_reduce(total)
    return [row[:-1] / row[-1] for row in total]


def cut(seconds, sent_bytes, stages):
    """Of all cuts that whose simulated step is shortest."""
    pipeline, machines = par.pipeline, par.machines
    layers = len(seconds)
    orders = pipeline.orders(pipeline.one_f_one_b(stages, 8))
    link = machines.Link("the link", latency_s=20e-6, bytes_per_s=1e9)

    def cuts(start, left):
        if left == 1:
            yield [layers]
            return
        for end in range(start + 1, layers - left + 2):
            for rest in cuts(end, left - 1):
                yield [end, *rest]

    def step_s(ends):
        costs = []
        for start, end in zip([0, *ends], ends, strict=False):
            work = sum(seconds[start:end])
            costs.append(pipeline.StageCost(work, 2 * work, sent_bytes=sent_bytes[end - 1]))
        return pipeline.Simulation.of(orders, costs, link).step_s

    ends = min(cuts(0, stages), key=step_s)
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def recompute(seconds, kept_bytes, capacity_bytes):
    """Nearly all of the memory: on some draws it is too little, and on this one it is best."""
    every, room = range(len(seconds)), 0.95 * capacity_bytes

    def recomputed_s(plan):
        return sum(seconds[i] for i in every if plan[i])

    def needs(plan):
        return sum(kept_bytes[i] * (0.25 if plan[i] else 1) for i in every)

    plans = [[bool(number >> i & 1) for i in every] for number in range(2 ** len(seconds))]
    return min((plan for plan in plans if needs(plan) <= room), key=recomputed_s)


def mix(model, machine, gpus, batch):
    """All meshes and settings whose numbers divide, one by one."""
    planner = par.planner
    network, box = planner.model(model), par.machines.machine(machine)
    there = 0.9 * box.accelerators[0].memory_bytes
    powers, found = [1, 2, 4, 8, 16, 32, 64], []
    for tensor in (1, 2, 4, 8):
        for pipeline in powers:
            if gpus % (tensor * pipeline) or network.layers % pipeline:
                continue
            mesh = planner.Mesh(gpus // tensor // pipeline, pipeline, tensor)
            for size in (1, 2, 4):
                count, rest = divmod(batch, mesh.data * size)
                for chunks in (1, 2, 4) if count and not rest else ():
                    if network.layers % (pipeline * chunks):
                        continue
                    if chunks > 1 and (pipeline == 1 or count % pipeline):
                        continue
                    for zero in (0, 1, 2, 3) if pipeline == 1 else (0, 1):
                        for again in ("none", "selective", "full"):
                            layout = planner.Layout(
                                mesh,
                                size,
                                count,
                                chunks,
                                again,
                                zero=zero,
                            )
                            if planner.memory(network, layout).total_bytes <= there:
                                found.append(layout)
                                break
    return min(
        found,
        key=lambda layout: planner.step(network, layout, box).step_s,
    )


def mixes(model, machine, batch):
    """The planner's first, with any stage of ZeRO."""
    found = par.planner.plans(model, machine, batch=batch, zero=None)
    return par.planner.best(found).layout
