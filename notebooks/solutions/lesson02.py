"""Solutions of the exercises of lesson 02; `tests/test_checks.py` runs them."""

import torch

import d2lpar as par


def timed(work, device) -> float:
    """Synchronise, read, work, synchronise, read."""
    device_module = torch.get_device_module(device)
    device_module.synchronize(device)
    start_s = par.timing.now_s(device, wait=False)
    work()
    device_module.synchronize(device)
    return par.timing.now_s(device, wait=False) - start_s


def prefetch(batches, work, device) -> list:
    """A side stream fetches the next batch while the current stream works on this one."""
    device_module = torch.get_device_module(device)
    working, fetching = device_module.current_stream(device), device_module.Stream(device)
    results = []

    def fetch(batch):
        with device_module.stream(fetching):
            return batch.to(device, non_blocking=True), fetching.record_event()

    following = fetch(batches[0])
    for number in range(len(batches)):
        X, arrived = following
        if number + 1 < len(batches):
            following = fetch(batches[number + 1])
        working.wait_event(arrived)
        X.record_stream(working)
        results.append(work(X))
    return results


def shortest(seconds, needs) -> float:
    """Every operation ends its own time after the last that it needs."""
    ends_s = {}

    def end_s(name):
        if name not in ends_s:
            ends_s[name] = seconds[name] + max(map(end_s, needs[name]), default=0.0)
        return ends_s[name]

    return max(map(end_s, seconds))
