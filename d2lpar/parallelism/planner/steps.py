"""How long a training step takes, part by part.

Layers of one rank are simulated; layers, micro-batches, stages and exchanges are added up (Shoeybi
et al. 2019; Narayanan et al. 2021). Parameters and activations are of two bytes each.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ...machines import collective_cost as cost
from ...machines.hardware import Machine
from ...vgpu.sim.kernel_cost import traffic
from .layers import GpuAndHost, LayerTimes, Share, core_s, head_times, layer_times
from .layout import Layout
from .mesh import Wiring
from .transformer import Transformer

HALF = 2  # bytes of a parameter or an activation
# Adam in fp32 reads weight, gradient and two moments, and writes three of them and an fp16 copy.
ADAM_BYTES = 30


@dataclass(frozen=True)
class StepTime:
    """Where the seconds of a step go, as the slowest GPU sees it.

    `tensor_s` are sums of activations within layers, `bubble_s` is filling and emptying the
    pipeline, `sending_s` hands activations to the next stage, `gradients_s` and `parameters_s` are
    exchanged between replicas (what computing does not hide), `optimizer_s` is the update.
    """

    compute_s: float
    tensor_s: float
    bubble_s: float
    sending_s: float
    gradients_s: float
    parameters_s: float
    optimizer_s: float

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by the name of a part, "compute" first."""
        return {part.name.removesuffix("_s"): getattr(self, part.name) for part in fields(self)}

    @property
    def step_s(self) -> float:
        """All parts together."""
        return sum(self.parts.values())


def step(model: Transformer, layout: Layout, machine: Machine) -> StepTime:
    """The step of a model that is spread by `layout` over the first GPUs of a machine.

    Layers that the stages do not divide evenly count as if they did. Raises ValueError if the
    machine has too few GPUs, and if tensor ranks cannot have the same number of heads.
    """
    if layout.mesh.size > len(machine.accelerators):
        raise ValueError(
            f"{layout.mesh} takes {layout.mesh.size} GPUs, and {machine.name} has "
            f"{len(machine.accelerators)}: name a larger cluster"
        )
    return step_on(model, layout, Wiring.of(machine))


def step_on(model: Transformer, layout: Layout, wiring: Wiring) -> StepTime:
    """The same, of a machine whose wiring is known."""
    pace = Pace.of(model, layout, wiring)
    mesh, count = layout.mesh, layout.micro_batches
    sending_s = 2 * pace.send_s
    stage_s = pace.stage_compute_s + pace.stage_tensor_s
    gradients_s, parameters_s = _between_replicas(model, layout, wiring, pace)
    return StepTime(
        compute_s=count * (pace.stage_compute_s + pace.head_s),
        tensor_s=count * pace.stage_tensor_s,
        bubble_s=(mesh.pipeline - 1) * (stage_s / layout.chunks + sending_s),
        sending_s=count * layout.chunks * sending_s,
        gradients_s=gradients_s,
        parameters_s=parameters_s,
        optimizer_s=_optimizer_s(model, layout, wiring),
    )


@dataclass(frozen=True)
class Pace:
    """Seconds of one micro-batch: in a stage forward and backward, in the head, sent once.

    What is computed again belongs to the backward pass.
    """

    forward_s: float
    backward_s: float
    forward_tensor_s: float
    backward_tensor_s: float
    head_s: float
    send_s: float

    @classmethod
    def of(cls, model: Transformer, layout: Layout, wiring: Wiring) -> Pace:
        """That of a model spread by `layout`. Raises ValueError if ranks cannot share its heads."""
        _check(model, layout)
        mesh = layout.mesh
        gpu = GpuAndHost.of(wiring.accelerator, wiring.host)
        share = share_of(model, layout)
        layer, head = layer_times(gpu, share), head_times(gpu, share)
        layers = model.layers / mesh.pipeline
        sums_s = 2 * _tensor_sum_s(model, layout, wiring)  # attention's and the perceptron's
        again = 2 if layout.recompute == "full" else 1
        return cls(
            forward_s=layers * layer.forward_s,
            backward_s=layers * (layer.backward_s + _again_s(gpu, share, layout, layer)),
            forward_tensor_s=layers * sums_s,
            backward_tensor_s=layers * sums_s * again,
            head_s=head.forward_s + head.backward_s,
            send_s=_send_s(model, layout, wiring),
        )

    @property
    def stage_compute_s(self) -> float:
        """Seconds that a stage computes for a micro-batch, forward and backward."""
        return self.forward_s + self.backward_s

    @property
    def stage_tensor_s(self) -> float:
        """Seconds of its sums of activations over tensor ranks, forward and backward."""
        return self.forward_tensor_s + self.backward_tensor_s


def share_of(model: Transformer, layout: Layout) -> Share:
    """What one rank has of a layer and of a micro-batch."""
    return Share(
        model.hidden,
        model.heads,
        model.sequence,
        model.words_per_rank(layout.mesh.tensor),
        layout.micro_batch,
        layout.mesh.tensor,
        layout.sequence_parallel and layout.mesh.tensor > 1,
        layout.attention,
        model.dropout,
    )


def activation_bytes(model: Transformer, layout: Layout) -> int:
    """A micro-batch's activations between two layers."""
    return layout.micro_batch * model.sequence * model.hidden * HALF


def _check(model: Transformer, layout: Layout) -> None:
    if model.heads % layout.mesh.tensor:
        raise ValueError(
            f"tensor {layout.mesh.tensor} does not divide the {model.heads} heads of {model.name}"
        )


def _again_s(gpu: GpuAndHost, share: Share, layout: Layout, layer: LayerTimes) -> float:
    if layout.recompute == "none":
        return 0.0
    return layer.forward_s if layout.recompute == "full" else core_s(gpu, share)


def _tensor_sum_s(model: Transformer, layout: Layout, wiring: Wiring) -> float:
    """One sum of activations over tensor ranks; split into a reduce-scatter and an all-gather with
    sequence parallelism, which carry the same."""
    if layout.mesh.tensor == 1:
        return 0.0
    fabric = wiring.fabric(layout.mesh, "tensor")
    return cost.all_reduce_s(activation_bytes(model, layout), fabric)


def _send_s(model: Transformer, layout: Layout, wiring: Wiring) -> float:
    """Handing a micro-batch to the next stage; its tensor ranks send a share each."""
    if layout.mesh.pipeline == 1:
        return 0.0
    return wiring.send_s(layout.mesh, activation_bytes(model, layout) / layout.mesh.tensor)


# --- between replicas -----------------------------------------------------------------------------


def parameters_per_gpu(model: Transformer, layout: Layout) -> float:
    """Those that the first stage's GPUs compute with, whether or not replicas share them."""
    mesh = layout.mesh
    layers = model.layers / mesh.pipeline * model.layer_parameters(mesh.tensor)
    return layers + model.word_parameters(mesh.tensor)


def _between_replicas(
    model: Transformer, layout: Layout, wiring: Wiring, pace: Pace
) -> tuple[float, float]:
    """Seconds for gradients and for parameters, without what goes on beside the computing.

    Without ZeRO gradients are all-reduced at the end; with it they are reduce-scattered, in stages
    2 and 3 after each micro-batch, and parameters all-gathered: once, in stage 3 in each forward
    and each backward pass, layer by layer.
    """
    if layout.mesh.data == 1:
        return 0.0, 0.0
    fabric = wiring.fabric(layout.mesh, "data")
    count, zero = layout.micro_batches, layout.zero
    parameters = parameters_per_gpu(model, layout)
    layers = max(model.layers // layout.mesh.pipeline, 1)
    summing_bytes = parameters * layout.gradient_bytes
    forward_s = pace.forward_s + pace.forward_tensor_s
    backward_s = pace.backward_s + pace.backward_tensor_s
    if not layout.overlap:
        forward_s = backward_s = 0.0
    if zero == 0:
        return _exposed_s(cost.all_reduce_s(summing_bytes, fabric), backward_s, layers), 0.0
    if zero < 3:
        summing_s = half_ring_s(summing_bytes, fabric)
        times = count if zero == 2 else 1
        gathering_s = half_ring_s(parameters * HALF, fabric)
        return (
            times * _exposed_s(summing_s, backward_s, layers),
            _exposed_s(gathering_s, forward_s, layers),
        )
    summing_s = layers * half_ring_s(summing_bytes / layers, fabric)
    gathering_s = layers * half_ring_s(parameters * HALF / layers, fabric)
    back_s = _exposed_s(summing_s + gathering_s, backward_s, layers)
    summing_share = summing_s / (summing_s + gathering_s)
    ahead_s = _exposed_s(gathering_s, forward_s, layers) + back_s * (1 - summing_share)
    return count * back_s * summing_share, count * ahead_s


def half_ring_s(nbytes: float, fabric: cost.Fabric) -> float:
    """Seconds of a reduce-scatter or an all-gather: a ring's all-reduce is one after the other."""
    return cost.all_reduce_s(nbytes, fabric, algorithm=cost.RING) / 2


def _exposed_s(exchange_s: float, computing_s: float, pieces: int) -> float:
    """What computing does not hide: at least the one piece of the exchange that is outside it."""
    if not computing_s:
        return exchange_s
    return max(exchange_s - computing_s, exchange_s / pieces)


def _optimizer_s(model: Transformer, layout: Layout, wiring: Wiring) -> float:
    shared_by = layout.mesh.data if layout.zero else 1
    update = traffic(int(parameters_per_gpu(model, layout) * ADAM_BYTES / shared_by))
    return update.seconds(wiring.accelerator)
