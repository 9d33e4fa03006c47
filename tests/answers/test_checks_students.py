"""What students write besides the one expected mistake: other units, NumPy, nothing at all."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.distributed as dist

from d2lpar import checks


def milliseconds(work, gpu):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize(gpu)
    return begin.elapsed_time(end)


def start_minus_end(work, gpu):
    import time

    torch.cuda.synchronize(gpu)
    start = time.time()
    work()
    torch.cuda.synchronize(gpu)
    return start - time.time()


def gigabytes(parameters, ranks, stage):
    held = (16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks)
    return parameters * held[stage] / 1e9


def no_return_for_stage_three(parameters, ranks, stage):
    if stage < 3:
        return 1e9 * gigabytes(parameters, ranks, stage)
    return None


def what_torch_cannot_do(batch_size, speeds):
    return torch.nn.Module()(batch_size)


def divides_by_two(net, loss):
    loss.backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= 2


def leaves_its_hooks(net, loss):
    works = []
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
        )
    loss.backward()
    for work in works:
        work.wait()
    for parameter in net.parameters():
        parameter.grad /= dist.get_world_size()


def not_numbers(loss, X, y, params, pieces):
    for parameter in params:
        parameter.grad = torch.full_like(parameter, math.nan)


@pytest.mark.parametrize(
    ("exercise", "answer", "reason"),
    [
        ("timed", milliseconds, "milliseconds"),
        ("timed", start_minus_end, "Subtract the start from the end"),
        ("timed", lambda work, gpu: work() or math.nan, "expected a number of seconds, got nan"),
        ("shortest", lambda *_: math.nan, "expected 4, got nan"),
        ("accumulate", not_numbers, "differs"),
        ("zero_bytes", gigabytes, "got 120, which are gigabytes: expected bytes"),
        ("zero_bytes", no_return_for_stage_three, "64, 3): expected a number of bytes, got None. "),
        ("zero_bytes", no_return_for_stage_three, "returned nothing here"),
        ("linear_intensity", lambda *_: print(1), "returned nothing here"),
        ("shares", what_torch_cannot_do, "your function raised NotImplementedError: Module"),
        ("flat", divides_by_two, "that is 1.5 times the average; divide once"),
        ("flat", lambda *_: torch.cuda.synchronize(), "take torch.get_device_module(device) for"),
        ("overlapped", leaves_its_hooks, "step 1 was right"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(exercise, answer, reason):
    verdict = getattr(checks, exercise)(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


def shares_in_numpy(batch_size, speeds):
    counts = np.floor(batch_size * np.array(speeds) / sum(speeds)).astype(int)
    counts[-1] += batch_size - counts.sum()
    return list(counts)


def fewest_in_numpy(stages, share):
    micro_batches = np.int64(1)
    while Fraction(stages - 1, int(micro_batches) + stages - 1) > Fraction(str(share)):
        micro_batches += 1
    return micro_batches


def intensity_in_numpy(n, inputs, outputs, bytes_each):
    floats = n * inputs + n * outputs + inputs * outputs + outputs
    return np.float64(2 * n * inputs * outputs) / (bytes_each * floats)


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("shares", shares_in_numpy),
        ("fewest_micro_batches", fewest_in_numpy),
        ("linear_intensity", intensity_in_numpy),
    ],
)
def test_numbers_of_numpy_are_numbers(exercise, answer):
    verdict = getattr(checks, exercise)(answer)
    assert verdict, verdict
