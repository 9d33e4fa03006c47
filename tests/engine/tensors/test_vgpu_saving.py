"""Checkpoints and copies: the same values, the same sharing, and readable without d2lpar."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import d2lpar as par


@pytest.fixture
def tied(gpus):
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    b.weight = a.weight
    return nn.Sequential(a, b, nn.BatchNorm1d(3)).to(gpus[1])


def train_one_step(net, optimizer, device):
    net(torch.randn(4, 3, device=device)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_checkpoint_loads_on_the_cpu(tied, tmp_path):
    torch.save(tied.state_dict(), tmp_path / "net.pt")
    loaded = torch.load(tmp_path / "net.pt")
    for name, value in tied.state_dict().items():
        assert type(loaded[name]) is torch.Tensor
        assert_close(loaded[name], value.cpu(), rtol=0, atol=0)
    loaded["0.weight"].zero_()
    assert loaded["1.weight"].abs().sum() == 0  # still the same memory


def test_a_checkpoint_loads_where_d2lpar_is_not_installed(tied, tmp_path):
    optimizer = torch.optim.Adam(tied.parameters())
    train_one_step(tied, optimizer, "vgpu:1")
    path = tmp_path / "all.pt"
    torch.save(
        {"net": tied.state_dict(), "optimizer": optimizer.state_dict(), "p": tied[0].weight}, path
    )
    code = f"""
import sys
sys.modules["d2lpar"] = None  # as if it were not installed: importing it raises
import torch
state = torch.load({str(path)!r})  # weights_only=True
assert type(state["p"]) is torch.nn.Parameter and state["p"].requires_grad
assert state["optimizer"]["state"][0]["exp_avg"].device.type == "cpu"
assert "d2lpar.vgpu" not in sys.modules
print(state["net"]["0.weight"].sum().item())
"""
    run = subprocess.run(
        [sys.executable, "-I", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) == tied[0].weight.detach().cpu().sum().item()


@pytest.mark.parametrize(
    "where",
    [
        "vgpu:2",
        lambda storage, location: torch.serialization.default_restore_location(storage, "vgpu:2"),
        {"cpu": "vgpu:2"},
        None,
    ],
)
def test_map_location_brings_a_checkpoint_to_a_device(gpus, tied, tmp_path, where):
    where = where or gpus[2]
    torch.save(tied.state_dict(), tmp_path / "net.pt")
    before = torch.vgpu.memory_allocated(2)
    loaded = torch.load(tmp_path / "net.pt", map_location=where)
    assert {v.device for v in loaded.values()} == {gpus[2]}
    held = torch.vgpu.memory_allocated(2) - before
    assert held == (len(loaded) - 1) * 512  # the tied weights once
    loaded["0.weight"].fill_(3)
    assert loaded["1.weight"].tolist() == [[3] * 3] * 3
    net = copy.deepcopy(tied).to(gpus[2])
    net.load_state_dict(loaded)
    assert_close(net[0].bias.detach().cpu(), tied[0].bias.detach().cpu())
    del loaded, net
    assert torch.vgpu.memory_allocated(2) == before


def test_whole_modules_and_attributes(gpus, tied, tmp_path):
    tied[0].weight.remark = "kept"
    torch.save(tied, tmp_path / "net.pt")
    for where, device in ((None, "cpu"), ("vgpu:3", "vgpu:3")):
        net = torch.load(tmp_path / "net.pt", map_location=where, weights_only=False)
        assert {str(p.device) for p in net.parameters()} == {device}
        assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in net.parameters())
        assert net[0].weight is net[1].weight
        assert net[0].weight.remark == "kept"
        net(torch.ones(2, 3, device=device)).sum().backward()


def test_views_share_memory_after_loading(gpus, tmp_path):
    x = torch.arange(6.0, device=gpus[0])
    torch.save([x, x[1:3], x.view(2, 3).t()], tmp_path / "views.pt")
    for where in (None, gpus[1]):
        whole, part, turned = torch.load(tmp_path / "views.pt", map_location=where)
        whole[1] = 9
        assert (part[0], turned[1, 0], turned.stride()) == (9, 9, (1, 3))
    assert x[1] == 1


def test_an_optimizer_goes_on_from_a_checkpoint(gpus, tied, tmp_path):
    optimizer = torch.optim.Adam(tied.parameters())
    train_one_step(tied, optimizer, gpus[1])
    torch.save(optimizer.state_dict(), tmp_path / "adam.pt")
    second = torch.optim.Adam(tied.parameters())
    second.load_state_dict(torch.load(tmp_path / "adam.pt"))
    moments = [o.state[tied[0].weight]["exp_avg"] for o in (optimizer, second)]
    assert moments[1].device == gpus[1]
    assert_close(moments[1].cpu(), moments[0].cpu())


def test_loading_where_no_such_device_is(gpus, tied, tmp_path):
    torch.save(tied.state_dict(), tmp_path / "net.pt")
    with pytest.raises(RuntimeError, match="there is no vgpu:77"):
        torch.load(tmp_path / "net.pt", map_location="vgpu:77")


def test_pickles_are_of_the_host(gpus):
    x = torch.arange(3.0, device=gpus[1], requires_grad=True)
    twin = pickle.loads(pickle.dumps(x))
    assert (type(twin), twin.device.type, twin.requires_grad) == (torch.Tensor, "cpu", True)
    twin.detach()[0] = 5
    assert x.tolist() == [0, 1, 2]


def test_deep_copies(gpus, tied):
    tied(torch.randn(4, 3, device=gpus[1])).square().sum().backward()
    twin = copy.deepcopy(tied)
    assert twin[0].weight is twin[1].weight
    assert all(isinstance(p, nn.Parameter) for p in twin.parameters())
    assert twin[2].running_mean.device == gpus[1]
    assert twin[0].weight.grad is None  # as of parameters on the host
    with torch.no_grad():
        twin[0].weight.zero_()
    assert tied[0].weight.abs().sum() > 0


def test_deep_copies_keep_what_shares_memory(gpus):
    x = torch.zeros(4, device=gpus[0])
    whole, part, again = copy.deepcopy([x, x[:2], x])
    whole[0] = 1
    assert part[0] == 1
    assert again is whole
    assert x[0] == 0
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x.requires_grad_() * 2)


def saved_and_loaded(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, map_location=x.device)


@pytest.mark.parametrize("known", [torch.Tensor.detach, saved_and_loaded])
def test_a_deep_copy_takes_its_own_memory_once_where_a_program_has_seen_the_storage(gpus, known):
    x = known(torch.rand(16, 24, device=gpus[0]))
    assert x.untyped_storage().nbytes() == x.nbytes  # seen
    before = torch.vgpu.memory_allocated(0)
    twin, part = copy.deepcopy([x, x[4:]])
    assert torch.vgpu.memory_allocated(0) == before + x.nbytes
    assert part.data_ptr() == twin[4:].data_ptr()
    assert torch.equal(twin.cpu(), x.cpu())
    del twin, part
    assert torch.vgpu.memory_allocated(0) == before


def test_copies_count_their_writes_as_on_the_cpu(gpus):
    def counts(x):
        shallow, deep = copy.copy(x), copy.deepcopy(x)
        shallow.add_(1)
        return x._version, shallow._version, deep._version, x.tolist()

    assert counts(torch.ones(2, device=gpus[0])) == counts(torch.ones(2))
    with torch.inference_mode():
        x = torch.ones(2, device=gpus[0])
    assert not copy.copy(x).is_inference()


def test_pickled_views_keep_their_layout(gpus):
    x = torch.arange(6.0, device=gpus[0]).view(2, 3).t()[1:]
    twin = pickle.loads(pickle.dumps(x))
    assert (twin.stride(), twin.storage_offset(), twin.tolist()) == ((1, 3), 1, x.tolist())


def test_loaded_tensors_can_become_larger(gpus, tmp_path):
    torch.save(torch.arange(3.0), tmp_path / "x.pt")
    x = torch.load(tmp_path / "x.pt", map_location=gpus[1])
    x.resize_(2000)
    assert x[:3].tolist() == [0, 1, 2]


def test_copies_of_loaded_tensors_can_be_used_beside_them(gpus, tmp_path):
    torch.save(torch.arange(3.0), tmp_path / "x.pt")
    x = torch.load(tmp_path / "x.pt", map_location=gpus[1])
    twin, before = copy.copy(x), torch.vgpu.memory_allocated(1)
    assert torch.cat([x, twin]).tolist() == [0, 1, 2] * 2
    x.grad = twin.clone()
    assert torch.vgpu.memory_allocated(1) == before + 512  # the clone, and nothing beside it
    twin.add_(1)
    assert x.tolist() == [1, 2, 3]


def test_loaded_tensors_with_attributes_are_no_views(gpus, tmp_path):
    x = torch.arange(3.0)
    x.tag = "x"
    torch.save([x, x[1:]], tmp_path / "x.pt")
    for place in ("cpu", gpus[1]):
        for trusted in (True, False):
            twin, part = torch.load(tmp_path / "x.pt", map_location=place, weights_only=not trusted)
            assert (twin.tag, twin._is_view(), twin.tolist()) == ("x", False, [0, 1, 2])
            assert part.untyped_storage().data_ptr() == twin.untyped_storage().data_ptr()


@pytest.mark.parametrize("kind", [torch.Tensor, nn.Parameter])
def test_files_of_tensors_that_moved_hold_nothing_of_where_they_were(gpus, kind):
    x, file = kind(torch.ones(2, device=gpus[0])), io.BytesIO()
    x.tag = "x"
    x.data = torch.zeros(2)
    torch.save(x, file)
    assert b"elsewhere" not in file.getvalue()
    file.seek(0)
    before = torch.vgpu.memory_allocated(1)
    twin = torch.load(file, map_location=gpus[1])
    assert twin.tag == copy.copy(x).tag == "x"
    assert torch.vgpu.memory_allocated(1) == before + 512


def test_tensors_that_a_copy_still_reads_can_be_copied_and_saved(fresh_gpus, tmp_path):
    x = torch.arange(3.0).pin_memory()
    x.to("vgpu:0", non_blocking=True)
    torch.save(x, tmp_path / "x.pt")
    twins = [copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))]
    assert [(type(t), t._is_view()) for t in twins] == [(torch.Tensor, False)] * 3
    with par.hazards() as found:
        x.add_(1)
    assert [hazard.kind for hazard in found] == ["host write"]


def test_storages_are_copied_where_they_are(gpus):
    x = torch.arange(6.0, device=gpus[1])
    twin = x.untyped_storage().clone()
    x.zero_()
    again = torch.empty(0, device=gpus[1]).set_(twin, 1, (2, 2), (2, 1))
    assert (twin.device, again.tolist()) == (gpus[1], [[1, 2], [3, 4]])
    again.fill_(7)
    assert bytes(twin.cpu())[4:20] == bytes(torch.full((4,), 7.0).untyped_storage())
    with pytest.raises(RuntimeError, match="on device vgpu:0 to a storage on device vgpu:1"):
        torch.empty(0, device=gpus[0]).set_(twin)


def test_a_bare_storage_takes_memory_of_its_device(gpus):
    before = torch.vgpu.memory_allocated(gpus[1])
    empty = torch.UntypedStorage(1000, device=gpus[1])
    assert (empty.device, empty.nbytes()) == (gpus[1], 1000)
    assert torch.vgpu.memory_allocated(gpus[1]) - before == 1024
    given = torch.UntypedStorage([1, 2, 3], device=gpus[1])
    assert torch.empty(0, dtype=torch.uint8, device=gpus[1]).set_(given).tolist() == [1, 2, 3]
    del empty, given
    assert torch.vgpu.memory_allocated(gpus[1]) == before
