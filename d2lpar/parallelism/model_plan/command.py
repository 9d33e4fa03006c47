"""The command `d2lpar plan`: does it fit, how long, how much, from a config.json alone."""

from __future__ import annotations

import argparse
from typing import Any

from ...timeline.inputs import Count, Positive, option
from ...timeline.printing import say
from .config import ModelConfig
from .families import FAMILIES, of_numbers
from .kinds import OF_INFERENCE, OF_TRAINING
from .naming import config_of
from .published import PUBLISHED

NUMBERS = ("layers", "hidden", "heads", "ffn", "vocabulary")  # all needed
MORE_NUMBERS = ("kv_heads", "experts", "top_k")
EXAMPLE = "d2lpar plan llama-3.1-8b --machine 8x-h100-nvswitch --batch 64"


def main(arguments: list[str]) -> int:
    """Print a plan. Returns 0, whether it fits or not.

    Raises ValueError for what is not there, before torch is imported where that can be said.
    """
    options = _parser().parse_args(arguments)
    config = _config(options)
    settings = _settings(options)
    from .planning import plan_model

    say(
        plan_model(
            config,
            options.machine,
            batch=options.batch,
            inference=options.inference,
            gpus=options.gpus,
            sequence=options.sequence,
            precision=options.precision,
            price=options.price,
            **settings,
        )
    )
    return 0


def _config(options: argparse.Namespace) -> ModelConfig:
    """The model by its file or name, or by its numbers. Raises ValueError for both, or neither."""
    numbers = {name: getattr(options, name) for name in NUMBERS}
    more = {name: getattr(options, name) for name in MORE_NUMBERS}
    given = [name for name, value in {**numbers, **more}.items() if value is not None]
    if options.tied:
        given.append("tied")
    if options.model is not None:
        if given:
            raise ValueError(
                f"{options.model} says its own numbers: leave out {_flags(given)}, or the model"
            )
        return config_of(options.model)
    if missing := [name for name, value in numbers.items() if value is None]:
        what = f"numbers without {_flags(missing)}" if given else "nothing to plan"
        raise ValueError(
            f"{what}: name a config.json or a model, as in `{EXAMPLE}`, or give {_flags(NUMBERS)}"
        )
    return of_numbers(**numbers, **more, tied=options.tied)


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """What is not left open. Raises ValueError for what belongs to the other kind of plan."""
    foreign = OF_TRAINING if options.inference else OF_INFERENCE
    values = {name: getattr(options, name) for name in (*OF_TRAINING, *OF_INFERENCE)}
    given = {name: v for name, v in values.items() if v is not None and v is not False}
    if wrong := [name for name in foreign if name in given]:
        kind, other = ("inference", "training") if options.inference else ("training", "inference")
        remedy = "leave it out" if options.inference else "add --inference, or leave it out"
        raise ValueError(f"{_flags(wrong)} is for {other}, and this is {kind}: {remedy}")
    both = ("micro_batch", "data", "tensor")
    return given | {name: getattr(options, name) for name in both}


def _flags(names: list[str] | tuple[str, ...]) -> str:
    return " ".join(f"--{name.replace('_', '-')}" for name in names)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "d2lpar plan",
        usage="d2lpar plan [CONFIG.json | MODEL] --machine NAME --batch N [options]",
        description="Does a model fit a machine, how long does it take, what does it cost? "
        "Simulated, without a GPU; nothing is downloaded.",
        epilog=f"MODEL is one of {', '.join(PUBLISHED)}. A config.json is one of Hugging Face's, "
        f"with a model_type among {', '.join(FAMILIES)}. What is left out, the planner chooses.",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a config.json, or a name")
    parser.add_argument(
        "--machine", required=True, metavar="NAME", help="one of `d2lpar machines`, or a file"
    )
    count = option(Count)
    parser.add_argument(
        *("--batch", "-b"),
        type=count,
        required=True,
        metavar="N",
        help="samples of a step over all GPUs; of inference, texts at once",
    )
    parser.add_argument("--gpus", type=count, metavar="N", help="default: all of the machine")
    parser.add_argument(
        "--sequence",
        type=count,
        metavar="N",
        help="tokens of a sample, or of a prompt; default: 4096, of a prompt 1024, or as many as "
        "it reads",
    )
    parser.add_argument(
        "--precision",
        metavar="P",
        help="bf16, fp16, fp8, tf32, fp32, or bf16-autocast and fp16-autocast, where weights stay "
        "fp32; default: what the GPU has",
    )
    parser.add_argument(
        "--price", type=option(Positive), metavar="USD", help="of a GPU an hour; default: published"
    )
    _add_mix(parser, count)
    _add_kinds(parser, count)
    _add_numbers(parser, count)
    return parser


def _add_mix(parser: argparse.ArgumentParser, count: Any) -> None:
    mix = parser.add_argument_group("how it is spread")
    for axis in ("data", "tensor", "pipeline"):
        mix.add_argument(f"--{axis}", type=count, metavar="N", help=f"{axis} parallel degree")
    mix.add_argument(
        "--micro-batch", type=count, metavar="N", help="samples, or prompts, of a pass on a GPU"
    )
    mix.add_argument(
        "--zero", type=int, choices=(0, 1, 2, 3), help="stage of ZeRO; 3 is FSDP's full sharding"
    )
    mix.add_argument(
        "--recompute",
        choices=("none", "selective", "full"),
        help="what the backward pass computes again",
    )
    mix.add_argument("--optimizer", choices=("adam", "adam-bf16", "sgd"), help="default: adam")
    mix.add_argument("--compiled", action="store_true", help="as torch.compile makes it")


def _add_kinds(parser: argparse.ArgumentParser, count: Any) -> None:
    kind = parser.add_argument_group("inference")
    kind.add_argument("--inference", action="store_true", help="answer, in place of training")
    kind.add_argument("--new", type=count, metavar="N", help="tokens written; default: 256")
    kind.add_argument(
        "--eager",
        action="store_true",
        help="plain PyTorch; default: fused kernels and CUDA graphs, as serving engines have them",
    )


def _add_numbers(parser: argparse.ArgumentParser, count: Any) -> None:
    numbers = parser.add_argument_group("a model of Llama's kind by its numbers, in place of MODEL")
    for name, what in {
        "layers": "layers",
        "hidden": "width",
        "heads": "heads of attention",
        "ffn": "inner width of the perceptron",
        "vocabulary": "words",
        "kv-heads": "heads of keys and values; default: all",
        "experts": "experts of a layer; default: none",
        "top-k": "experts that a token chooses; default: 2",
    }.items():
        numbers.add_argument(f"--{name}", type=count, metavar="N", help=what)
    numbers.add_argument("--tied", action="store_true", help="embeddings are one matrix")
