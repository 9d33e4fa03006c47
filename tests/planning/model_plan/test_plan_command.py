"""`d2lpar plan`: what it prints, how it refuses, and that it needs no torch to refuse."""

import json
import subprocess
import sys

import pytest

from d2lpar import machines
from d2lpar.command import cli
from d2lpar.machines import prices

CONFIG = {
    "model_type": "qwen2",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "vocab_size": 32_000,
    "tie_word_embeddings": True,
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def run(capsys, *words):
    """The exit status, stdout and stderr of `d2lpar plan`."""
    try:
        status = cli.main(["plan", *map(str, words)])
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


def test_a_plan_of_training(capsys, config):
    status, out, err = run(capsys, config, "--machine", "1x-a100-nvswitch", "--batch", 8)
    assert (status, err) == (0, "")
    for said in ("Does it fit? Yes", "weights", "optimizer", "How long?", "±", "bound by", "$1.99"):
        assert said in out
    assert "tokens a second" in out
    assert max(map(len, out.splitlines())) <= 100
    assert "\x1b" not in out


def test_stage_zero_of_zero_is_a_stage(capsys):
    words = ("llama-3.2-1b", "--machine", "8x-a100-nvswitch", "--batch", 64)
    assert "ZeRO stage" in run(capsys, *words)[1]
    assert "ZeRO stage" not in run(capsys, *words, "--zero", 0)[1]


def test_a_plan_of_inference(capsys, config):
    words = ("--machine", "1x-a100-nvswitch", "--batch", 8, "--inference", "--new", 16)
    status, out, err = run(capsys, config, *words)
    assert (status, err) == (0, "")
    assert "KV cache" in out
    assert "first token" in out
    assert max(map(len, out.splitlines())) <= 100


def test_what_does_not_fit_is_no_error(capsys):
    status, out, err = run(
        capsys, "llama-3.1-70b", "--machine", "1x-rtx-3060", "--batch", 1, "--sequence", 512
    )
    assert (status, err) == (0, "")
    assert "Does it fit? No" in out
    assert "What would make it fit" in out
    assert "How long?" not in out
    assert max(map(len, out.splitlines())) <= 100


def test_numbers_in_place_of_a_model(capsys):
    sizes = {"layers": 2, "hidden": 256, "heads": 4, "ffn": 512, "vocabulary": 1000, "experts": 4}
    words = [word for name, size in sizes.items() for word in (f"--{name}", size)]
    status, out, _ = run(capsys, *words, "--machine", "1x-a100-nvswitch", "--batch", 8)
    assert status == 0
    assert "of them active" in out


def test_a_price_of_ones_own_and_none_at_all(capsys, config):
    where = (config, "--machine", "1x-rtx-3060", "--batch", 8, "--sequence", 256)
    assert "No price" in run(capsys, *where)[1]
    assert "$0.25 an hour" in run(capsys, *where, "--price", 0.25)[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "nonsense"),
        (["/"], "folder"),
        ([sys.executable], "binary|larger"),
        (["gpt2", "--layers", "3"], "--layers"),
        ([], "--vocabulary"),
        (["--layers", "3"], "--hidden"),
        (["gpt2", "--new", "3"], "--inference"),
        (["gpt2", "--inference", "--zero", "3"], "--zero"),
        (["gpt2", "--zero", "4"], "zero"),
        (["gpt2", "--sequence", "0"], "sequence"),
    ],
)
def test_refusals_go_to_stderr(capsys, words, said):
    status, out, err = run(capsys, *words, "--machine", "1x-a100-nvswitch", "--batch", 4)
    assert (status, out) == (2, "")
    assert any(part in err for part in said.split("|"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--machine", "1x-a1000", "--batch", "4"], "1x-a1000"),
        (["--machine", "1x-a100-nvswitch", "--batch", "4", "--gpus", "2"], "not 2"),
        (["--machine", "1x-a100-nvswitch", "--batch", "4", "--precision", "fp8"], "fp8"),
        (["--machine", "1x-a100-nvswitch", "--batch", "4", "--precision", "int3"], "int3"),
        (["--machine", "1x-a100-nvswitch", "--batch", "4", "--sequence", "4096"], "1,024"),
        (["--machine", "1x-a100-nvswitch", "--batch", "4", "--micro-batch", "3"], "batch"),
    ],
)
def test_so_do_those_of_machines(capsys, words, said):
    status, out, err = run(capsys, "gpt2", *words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.startswith("d2lpar")


def test_a_config_is_refused_before_torch_is_imported(tmp_path):
    program = (
        "import sys\n"
        "from d2lpar.command import cli\n"
        f"status = cli.main(['plan', {str(tmp_path)!r}, '--machine', 'x', '--batch', '1'])\n"
        "print(status, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "2 False\n"
    assert "is a folder" in done.stderr


def test_prices_are_of_machines_that_there_are():
    kinds = {name.partition("x-")[2] for name in machines.CATALOGUE}
    assert set(prices.OF_MACHINES) <= kinds
    cards = {machine.accelerators[0].name for machine in machines.CATALOGUE.values()}
    assert set(prices.OF_ACCELERATORS) <= cards
    for price in (*prices.OF_MACHINES.values(), *prices.OF_ACCELERATORS.values()):
        assert price.source.startswith("https://")
        assert price.date.startswith("2026-")
        assert 0.1 < price.usd_per_gpu_h < 15


def test_a_cluster_costs_what_its_nodes_do():
    one, cluster = (
        prices.price_of(machines.machine(name)) for name in ("8x-h100-p5", "2x8x-h100-p5-8xefa-v2")
    )
    assert one == cluster == prices.OF_MACHINES["h100-p5"]
    assert prices.price_of(machines.machine("8x-h100-a3-mega")).offer.startswith("Lambda")
    assert prices.price_of(machines.machine("1x-rtx-3060")) is None
