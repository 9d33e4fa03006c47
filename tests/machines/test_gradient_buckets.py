"""DDP's buckets, against torch's own assignment."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from d2lpar import models
from d2lpar.machines.gradient_buckets import DEFAULT_LIMITS, assign_buckets
from d2lpar.parallelism.scaling import Gradient, buckets


def mixed():
    """Layers of two data types, taking turns."""
    return nn.Sequential(nn.Linear(900, 900), nn.Linear(700, 700).double(), nn.Linear(900, 300))


def vision(name, **options):
    return getattr(pytest.importorskip("torchvision.models"), name)(**options)


NETWORKS = {
    "LeNet": models.lenet,
    "transformer": lambda: nn.TransformerEncoderLayer(768, 12, 3072),
    "two data types": mixed,
    "ResNet-18": lambda: vision("resnet18"),
    "VGG-11": lambda: vision("vgg11"),
}


@pytest.fixture(scope="module", params=NETWORKS)
def backwards(request):
    """Its parameters on no device, the last first: so their gradients come."""
    with torch.device("meta"):
        return [*NETWORKS[request.param]().parameters()][::-1]


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, (2**20,), (3e5, 2e6, 5e6), (float("inf"),)])
def test_buckets_are_torchs(backwards, limits):
    limits = [min(int(min(limit, 2**62)), 2**62) for limit in limits]
    numbers = [*range(len(backwards))]
    theirs, _ = dist._compute_bucket_assignment_by_size(
        backwards, limits, [False] * len(numbers), numbers
    )
    ours = assign_buckets([p.nbytes for p in backwards], limits, [p.dtype for p in backwards])
    kinds = {p.dtype for p in backwards}
    # Of several data types torch leaves it open which of the buckets that are left comes first.
    assert ours == theirs if len(kinds) == 1 else sorted(ours) == sorted(theirs)


def test_the_small_first_bucket_of_resnet_18():
    """For ten classes: with one limit for all it would be two buckets of 28.9 and 15.8 MB."""
    sizes = [p.nbytes for p in vision("resnet18", num_classes=10).parameters()][::-1]
    found = [sum(sizes[i] for i in members) for members in assign_buckets(sizes)]
    assert [nbytes / 1e6 for nbytes in found] == pytest.approx([9.46, 26.5, 8.75], abs=0.05)


def test_the_model_of_a_step_gathers_gradients_alike(backwards):
    gradients = [Gradient(p.nbytes, at) for at, p in enumerate(backwards)]
    if len({p.dtype for p in backwards}) > 1:
        pytest.skip("gradients of the model have no data type")
    found = [bucket.bytes for bucket in buckets(gradients)]
    sizes = [gradient.bytes for gradient in gradients]
    assert found == [sum(sizes[i] for i in members) for members in assign_buckets(sizes)]


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_of_nothing_is_refused(limit):
    with pytest.raises(ValueError, match="more than zero bytes"):
        assign_buckets([1, 2], (limit,))
