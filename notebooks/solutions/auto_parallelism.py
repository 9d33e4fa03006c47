"""Solutions of the exercises of lesson 03, run by the tests."""

import time

import torch


def timed(work, gpu) -> float:
    """Synchronise, read, work, synchronise, read."""
    torch.cuda.synchronize(gpu)
    start_s = time.time()
    work()
    torch.cuda.synchronize(gpu)
    return time.time() - start_s


def prefetch(batches, work, gpu) -> list:
    """A side stream fetches a batch while this one works."""
    working = torch.cuda.current_stream(gpu)
    fetching = torch.cuda.Stream(gpu)
    results = []

    def fetch(batch):
        with torch.cuda.stream(fetching):
            X = batch.to(gpu, non_blocking=True)
            return X, fetching.record_event()

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
    """An operation starts when the last that it needs has ended."""
    ends_s = {}

    def end_s(name):
        if name not in ends_s:
            start_s = max(map(end_s, needs[name]), default=0.0)
            ends_s[name] = start_s + seconds[name]
        return ends_s[name]

    return max(map(end_s, seconds))
