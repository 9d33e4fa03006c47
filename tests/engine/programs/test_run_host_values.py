"""Large random values that programs draw on the host, where a run computes no values."""

import json
from math import isnan

import pytest
import running
import torch

import d2lpar as par
from d2lpar.vgpu.ranks.state import host_values

PROGRAM = """
import torch
from torch import nn
from torch.nn.init import normal_

torch.manual_seed(0)
large, small = nn.Linear(2048, 512, bias=False), nn.Linear(8, 8)
table = normal_(torch.empty(1024, 1024))
print(large.weight.detach().norm().item(), table.mean().item(), small.weight.detach().norm().item())
out = large.cuda()(torch.ones(4, 2048, device="cuda"))
out.sum().backward()
torch.optim.SGD(large.parameters(), lr=0.1).step()
"""


@pytest.mark.parametrize("shapes_only", [False, True])
def test_large_ones_are_set_unless_there_are_no_values(tmp_path, shapes_only):
    script, report = tmp_path / "program.py", tmp_path / "run.json"
    script.write_text(PROGRAM)
    options = ["--quiet", "--report", str(report), *(["--shapes-only"] * shapes_only)]
    state = torch.get_rng_state()
    ran = running.run(*options, script)
    assert ran.status == 0
    torch.manual_seed(0)
    large, small = torch.nn.Linear(2048, 512, bias=False), torch.nn.Linear(8, 8)
    table = torch.nn.init.normal_(torch.empty(1024, 1024))
    torch.set_rng_state(state)
    found = [float(value) for value in ran.out.split()]
    whole = [t.detach() for t in (large.weight, table, small.weight)]
    if shapes_only:
        assert all(map(isnan, found[:2]))
        assert 0 < found[2] < 10
    else:
        expected = [whole[0].norm().item(), whole[1].mean().item(), whole[2].norm().item()]
        assert found == pytest.approx(expected)
    assert json.loads(report.read_text())["devices"][0]["peak_memory_bytes"] > 2 * 4 * 2**20


def test_memory_of_large_ones_is_not_written():
    """What is not written takes no memory: so many times more fits than there is."""
    with host_values.left_unset():
        large = torch.zeros(2**20)  # what was there stays
        kept = torch.nn.init.ones_
        assert torch.nn.init.normal_(large) is large
    assert large[0].isnan()
    assert not large[1:].any()
    assert kept(large).sum() == torch.nn.init.ones_(large).sum() == 2**20


@pytest.mark.parametrize(
    "draw",
    [
        lambda large: torch.rand(large, 1),
        lambda large: torch.randn((2, large), dtype=torch.float64, requires_grad=True),
        lambda large: torch.randn([large], generator=torch.Generator()),
        lambda large: torch.zeros(large).normal_(0, 0.02),
        lambda large: torch.nn.Parameter(torch.zeros(2, large)).data.uniform_(-1, 1),
    ],
)
def test_what_is_large_is_not_drawn(draw):
    state = torch.get_rng_state()
    kept = torch.rand
    with host_values.left_unset():
        assert draw(2**20).flatten()[0].isnan()
        assert torch.equal(torch.get_rng_state(), state)
        assert not draw(8).isnan().any()
    torch.set_rng_state(state)
    assert not draw(2**20).isnan().any()
    assert torch.rand is kept
    assert "normal_" not in vars(torch.Tensor)


def test_what_is_drawn_elsewhere_or_into_a_tensor_is_left_to_torch():
    with host_values.left_unset():
        out = torch.empty(2**20)
        assert not torch.rand(2**20, out=out).isnan().any()
        assert torch.randn(2**20, device="meta").is_meta
        with torch.device("meta"):
            assert torch.rand(2**20).is_meta


@pytest.mark.parametrize("shape_only", [False, True])
def test_ranks_without_values_set_no_large_weights_on_the_host(shape_only):
    """64 ranks that each make a GPT there took 40 GB, and a minute."""

    def first_of_a_large_and_a_small_weight() -> tuple[float, float]:
        large, small = torch.nn.Linear(2048, 512), torch.nn.Linear(8, 8)
        found = large.weight.flatten()[0].item(), small.weight.flatten()[0].item()
        large.to(torch.get_device_module("vgpu").current_device())
        return found

    with par.simulate("2x-v100-textbook", with_values=not shape_only) as gpus:
        found = par.run_ranks(first_of_a_large_and_a_small_weight, gpus)
    assert [isnan(large) for large, _ in found] == [shape_only] * 2
    assert not any(isnan(small) for _, small in found)
    assert not torch.nn.Linear(2048, 512).weight.isnan().any()
