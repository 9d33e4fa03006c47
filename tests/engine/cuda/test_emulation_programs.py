"""Whole programs for CUDA, as one finds them, run as they stand: right results, plausible times."""

import runpy
import types
from pathlib import Path

import pytest
import torch

import d2lpar as par

PROGRAMS = Path(__file__).parents[2] / "programs"


@pytest.fixture(autouse=True)
def precision_stays():
    """Programs may set it for the whole process, as on CUDA."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def run(name, gpus=2, **options):
    """The names that a program leaves, run as a script on so many GPUs."""
    torch.manual_seed(0)
    with par.emulate_cuda(gpus, verbose=False, **options):
        return types.SimpleNamespace(**runpy.run_path(str(PROGRAMS / f"{name}.py")))


@pytest.fixture(scope="module")
def on_cpu():
    """What a program leaves where there is no GPU."""

    def run_here(name):
        torch.manual_seed(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: False)
            patch.setattr(torch.cuda, "device_count", lambda: 0)
            return types.SimpleNamespace(**runpy.run_path(str(PROGRAMS / f"{name}.py")))

    return run_here


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def assert_equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_lenet_by_hand_gives_what_one_device_gives(on_cpu, capsys):
    expected = on_cpu("lenet_by_hand").replicas[0]
    for gpus in (1, 2, 3):
        program = run("lenet_by_hand", gpus)
        assert f"'cuda:{gpus - 1}']" in capsys.readouterr().out
        assert len(program.replicas) == gpus
        for replica in program.replicas:
            assert_equal(replica, expected)
        assert min(program.laps) > 0


def test_a_large_batch_is_faster_on_two_devices():
    seconds = {}
    for gpus in (1, 2):
        program = run("lenet_by_hand", gpus, shape_only=True)
        with par.emulate_cuda(gpus, verbose=False, shape_only=True):
            _, laps = program.train(gpus, batch_size=20_000, lr=0.1)
        seconds[gpus] = min(laps)
    assert 1.5 < seconds[1] / seconds[2] < 2.1


def test_data_parallel_resnet_learns_as_on_the_cpu(on_cpu):
    expected, one, two = on_cpu("resnet_concise"), run("resnet_concise", 1), run("resnet_concise")
    torch.testing.assert_close(one.losses, expected.losses, rtol=1e-3, atol=1e-4)
    assert one.accuracy == pytest.approx(expected.accuracy, abs=0.02)
    # Batch normalisation sees half of the batch on each device.
    torch.testing.assert_close(two.losses, expected.losses, rtol=0.2, atol=0.2)
    assert two.losses[-1] < two.losses[0]
    assert two.times[1] == pytest.approx(two.times[0], rel=0.05)


def test_two_devices_work_at_once_and_copies_overlap():
    seconds = run("auto_parallelism", shape_only=True).seconds
    both, one = seconds["GPU1 & GPU2"], seconds["GPU1 time"]
    flops = 50 * 2 * 4000**3
    assert one > flops / 15.7e12  # the datasheet's peak of the V100
    assert seconds["GPU2 time"] == pytest.approx(one)
    assert both == pytest.approx(one, rel=0.01)
    assert seconds["Run on GPU1 and copy to CPU"] < seconds["Run on GPU1"] + seconds["Copy to CPU"]
    assert seconds["without waiting"] < 0.01 * one  # the classic bug is there to be seen


def test_a_pipeline_is_faster_than_plain_model_parallelism():
    program = run("model_parallel", shape_only=True)
    assert program.toy_devices == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    seconds = program.seconds
    assert seconds["pipeline"] < seconds["single"] < seconds["model parallel"]


def test_replicas_see_their_part_of_the_batch(on_cpu, capsys):
    program = run("data_parallel")
    assert "Let's use 2 GPUs!" in capsys.readouterr().out
    assert sorted(program.seen[:2]) == [("cuda:0", 15), ("cuda:1", 15)]
    assert sorted(program.seen[-2:]) == [("cuda:0", 5), ("cuda:1", 5)]
    assert_equal(program.outputs, on_cpu("data_parallel").outputs)


def test_streams_order_overlap_and_measure():
    program = run("streams")
    assert program.total_on_cpu == pytest.approx(program.expected_total, abs=0.5)
    assert program.elapsed_ms > 10 * 2 * 1000**3 / 15.7e12 * 1e3
    assert program.prefetched_ms < program.plain_ms


def test_mixed_precision_trains():
    program = run("mixed_precision", 1)
    assert program.dtypes == {torch.float16}
    assert program.also == torch.bfloat16
    assert not program.inside
    assert program.losses[-1] < 0.05 * program.losses[0]
    assert program.scaler.get_scale() == 2**15  # 65536 overflowed once
    assert program.peak > 0


def test_checkpoints_go_where_they_are_sent():
    program = run("checkpoints")
    first, cpu = "cuda:0", "cpu"
    assert program.devices == ["cuda:1", cpu, first, first, first, first, cpu]
    assert program.moments == {"cuda:0"}
    assert program.same
    assert program.names[0] == "module.0.weight"


@pytest.mark.slow
def test_the_textbooks_own_helpers(monkeypatch):
    """`d2l` takes long to import."""
    import matplotlib as mpl

    mpl.use("Agg")
    d2l = pytest.importorskip("d2l.torch")
    with par.emulate_cuda(2, verbose=False):
        devices = d2l.try_all_gpus()
        assert devices == [torch.device("cuda:0"), torch.device("cuda:1")]
        assert d2l.num_gpus() == 2
        assert d2l.try_gpu(5) == torch.device("cpu")
        timer = d2l.Timer()
        x = torch.rand(500, 500, device=d2l.try_gpu(1))
        x.mm(x)
        torch.cuda.synchronize(devices[1])
        assert 0 < timer.stop() < 1e-3  # it took the processor longer
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(2)).to(devices[0])
        batches = [(torch.rand(8, 1, 4, 4), torch.randint(2, (8,)))] * 10
        net(batches[0][0].to(devices[0]))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        with pytest.warns(UserWarning, match="requires_grad"):
            d2l.train_ch13(net, batches, batches, loss, optimizer, 2, devices)
        assert 0 <= d2l.evaluate_accuracy_gpu(net, batches) <= 1
