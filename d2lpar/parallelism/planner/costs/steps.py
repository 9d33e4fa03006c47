"""How long a training step takes, part by part.

Layers of one rank are simulated; layers, micro-batches, stages and exchanges are added up (Shoeybi
et al. 2019; Narayanan et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ....machines import collective_cost as cost
from ....machines.hardware import Host, Machine
from ....machines.variability import slowest_of
from ....timeline.inputs import checked
from ....vgpu.sim.pricing.kernel_cost import traffic
from ..frameworks import FRAMEWORKS
from ..layout import ALTERNATE, Layout
from ..mesh import Wiring
from ..precision import FP8, PRECISIONS
from ..transformer import Transformer
from .layers import GpuAndHost, LayerTimes, core_s, head_times, layer_times, product_times
from .replicas import Computing, accumulating_s, between_replicas, copies_s, parameters_per_gpu
from .share import Share, activation_bytes, share_of


@dataclass(frozen=True)
class StepTime:
    """Where the seconds of a step go, as the slowest GPU sees it.

    `tensor_s` are sums of activations within layers, `context_s` brings keys and values together,
    `experts_s` takes tokens to their experts and back, `bubble_s` is filling and emptying the
    pipeline, `sending_s` hands activations to the next stage, `gradients_s` and `parameters_s` are
    exchanged between replicas (what computing does not hide), `optimizer_s` is the update.
    """

    compute_s: float
    tensor_s: float
    context_s: float
    experts_s: float
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


@checked
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
    one = MicroBatchTimes.of(model, layout, wiring)
    mesh, count = layout.mesh, layout.micro_batches
    sending_s = 2 * one.send_s
    stage_s = one.stage_compute_s + one.stage_tensor_s + one.context_s + one.experts_s
    gradients_s, parameters_s = between_replicas(model, layout, wiring, one.computing)
    computing_s = one.stage_compute_s + one.head_s + copies_s(model, layout, wiring)
    return StepTime(
        compute_s=count * computing_s + (count - 1) * accumulating_s(model, layout, wiring),
        tensor_s=count * one.stage_tensor_s,
        context_s=count * one.context_s,
        experts_s=count * one.experts_s,
        bubble_s=(mesh.pipeline - 1) * (stage_s / layout.chunks + sending_s),
        sending_s=count * layout.chunks * sending_s,
        gradients_s=gradients_s,
        parameters_s=parameters_s,
        optimizer_s=_optimizer_s(model, layout, wiring),
    )


@dataclass(frozen=True)
class MicroBatchTimes:
    """Seconds of one micro-batch: in a stage forward and backward, in the head, sent once.

    Computing takes what the slowest of all GPUs takes, as all wait for it.

    What is computed again belongs to the backward pass; exchanges of a context and of experts are
    those of both passes.
    """

    forward_s: float
    backward_s: float
    forward_tensor_s: float
    backward_tensor_s: float
    head_s: float
    send_s: float
    context_s: float
    experts_s: float

    @classmethod
    def of(cls, model: Transformer, layout: Layout, wiring: Wiring) -> MicroBatchTimes:
        """That of a model spread by `layout`. Raises ValueError if ranks cannot share its heads."""
        _check(model, layout)
        mesh = layout.mesh
        gpu = GpuAndHost.of(wiring.accelerator, wiring.host)
        share = share_of(model, layout)
        layer, head = layer_times(gpu, share), head_times(gpu, share)
        layers = model.layers / mesh.pipeline
        sums = _tensor_sums(gpu, share, layout, wiring)
        passes = {"full": 3.0, ALTERNATE: 2.5}.get(layout.recompute, 2.0)
        slow = slowest_of(mesh.size)
        again_s = _again_s(gpu, share, layout, layer)
        late = _host_is_late(wiring.host, layout, layer, again_s, sums)
        return cls(
            forward_s=slow * layers * (layer.forward_s + late.forward_s),
            backward_s=slow * layers * (layer.backward_s + again_s + late.backward_s),
            forward_tensor_s=layers * sums.forward_s,
            backward_tensor_s=layers * sums.backward_s,
            head_s=slow * (head.forward_s + head.backward_s),
            send_s=_send_s(model, layout, wiring),
            context_s=layers * _context_s(share, layout, wiring),
            experts_s=layers * passes * _to_experts_s(share, layout, wiring),
        )

    @property
    def stage_compute_s(self) -> float:
        """Seconds that a stage computes for a micro-batch, forward and backward."""
        return self.forward_s + self.backward_s

    @property
    def computing(self) -> Computing:
        """What exchanges between replicas may hide behind."""
        return Computing(
            self.forward_s + self.forward_tensor_s, self.backward_s + self.backward_tensor_s
        )

    @property
    def stage_tensor_s(self) -> float:
        """Seconds of its sums of activations over tensor ranks, forward and backward."""
        return self.forward_tensor_s + self.backward_tensor_s


def _check(model: Transformer, layout: Layout) -> None:
    experts = 1 if model.experts is None else model.experts.count
    if experts % layout.expert:
        raise ValueError(
            f"expert {layout.expert} does not divide the {experts} experts of a layer of "
            f"{model.name}: take a divisor"
        )
    if model.heads % layout.mesh.tensor:
        raise ValueError(
            f"tensor {layout.mesh.tensor} does not divide the {model.heads} heads of {model.name}"
        )


def _again_s(gpu: GpuAndHost, share: Share, layout: Layout, layer: LayerTimes) -> float:
    """Seconds of what one layer computes again. Selectively that is the attention between its
    products; if it is fused, all but attention and every second product."""
    if layout.recompute == "none":
        return 0.0
    if layout.recompute in ("full", ALTERNATE):
        return layer.forward_s / (1 if layout.recompute == "full" else 2)
    if layout.attention == "scores":
        return core_s(gpu, share)
    plain = replace(share, model=replace(share.model, positions="none"))
    kept_s = core_s(gpu, plain) + product_times(gpu, share).forward_s / 2
    return max(layer.forward_s - kept_s, 0.0)


def _host_is_late(
    host: Host, layout: Layout, layer: LayerTimes, again_s: float, sums: LayerTimes
) -> LayerTimes:
    """By how much a host that queues a layer outlasts the GPU, which computes and sums beside it.

    It calls torch.distributed for each of the layer's two sums in a pass (but not where products
    hide them piece by piece, in C++), goes through the framework's functions, and of a layer that
    is computed again queues the forward pass twice.
    """
    framework = FRAMEWORKS[layout.framework]
    sums_in_python = layout.mesh.tensor > 1 and not layout.tensor_overlap
    calls_s = 2 * (host.dispatch_s + host.collective_s) if sums_in_python else 0.0
    forward_s = layer.forward_host_s + framework.forward_s(host) + calls_s
    backward_s = layer.backward_host_s + framework.backward_s(host) + calls_s
    if layout.recompute in ("full", ALTERNATE):
        share = 1.0 if layout.recompute == "full" else 0.5
        backward_s += share * (host.checkpoint_s + forward_s)
    return LayerTimes(
        max(forward_s - layer.forward_s - sums.forward_s, 0.0),
        max(backward_s - layer.backward_s - again_s - sums.backward_s, 0.0),
    )


def _tensor_sums(gpu: GpuAndHost, share: Share, layout: Layout, wiring: Wiring) -> LayerTimes:
    """A layer's sums of activations over tensor ranks, attention's and the perceptron's.

    Beside products only that takes time which they do not hide, and what products lose that are cut
    into a piece for each rank, so that the sums can begin before they end: all of a forward pass,
    and of a backward pass those that wait for a gradient (Transformer Engine and torch alike).
    """
    sums_s = 2 * _tensor_sum_s(share.model, layout, wiring)
    again_s = sums_s * _sums_again(layout)
    if not (layout.tensor_overlap and sums_s):
        return LayerTimes(sums_s, again_s)
    if share.precision == "fp8":  # weights are cast once, whatever the pieces are
        share = replace(share, precision="fp8-delayed")
    ranks = layout.mesh.tensor
    piece = replace(share.model, sequence=-(-share.model.sequence // ranks))
    whole = product_times(gpu, share)
    cut_s = ranks * product_times(gpu, replace(share, model=piece)).forward_s - whole.forward_s
    return LayerTimes(
        _not_hidden_s(sums_s, whole.forward_s, cut_s, ranks),
        _not_hidden_s(again_s, whole.backward_s, cut_s / 2, ranks),
    )


def _not_hidden_s(sums_s: float, products_s: float, cut_s: float, pieces: int) -> float:
    """What sums add to products that take `cut_s` longer in pieces.

    Gathered, a rank's own piece is there at once; scattered, the first waits for its product, or
    the last outlives it.
    """
    return max(sums_s - products_s, cut_s, 0.0) + min(sums_s, products_s) / 2 / pieces


def _tensor_sum_s(model: Transformer, layout: Layout, wiring: Wiring) -> float:
    """One sum of activations over tensor ranks; with sequence parallelism a reduce-scatter and an
    all-gather by rings. They carry the same, but in fp8 what is gathered is what products read
    (torchtitan's Float8ColwiseParallel, Transformer Engine).

    Where samples come first, what ranks have of each sample's tokens is copied into its place after
    the one and before the other (torch.distributed._functional_collectives: `torch.cat` for any
    dimension but the first).
    """
    if layout.mesh.tensor == 1:
        return 0.0
    fabric = wiring.fabric(layout.mesh, "tensor")
    nbytes = activation_bytes(model, layout) * layout.product_bytes // layout.number_bytes
    if not layout.sequence_parallel:
        return cost.all_reduce_s(nbytes, fabric)
    copy_s = traffic(2 * nbytes).seconds(wiring.accelerator) if layout.batch_first else 0.0
    gathered = nbytes // 2 if PRECISIONS[layout.precision].rate == FP8 else nbytes
    exchanged_s = cost.reduce_scatter_s(nbytes, fabric) + cost.all_gather_s(gathered, fabric)
    return exchanged_s + 2 * copy_s


def _sums_again(layout: Layout) -> float:
    """Sums of a backward pass with those of what is computed again, for one of a forward pass.

    Selectively products that are computed again gather their input once more; what comes out of
    others is kept, summed.
    """
    gathers = layout.attention != "scores" and layout.sequence_parallel
    selectively = 1.5 if gathers else 1.0
    return {"full": 2.0, ALTERNATE: 1.5, "selective": selectively}.get(layout.recompute, 1.0)


def _send_s(model: Transformer, layout: Layout, wiring: Wiring) -> float:
    """Handing a micro-batch to the next stage; its tensor ranks send a share each."""
    if layout.mesh.pipeline == 1:
        return 0.0
    return wiring.send_s(layout.mesh, activation_bytes(model, layout) / layout.mesh.tensor)


def _context_s(share: Share, layout: Layout, wiring: Wiring) -> float:
    """One layer's keys and values, forward and backward.

    Backward they come once more, and their gradients are summed.
    """
    if share.context == 1:
        return 0.0
    numbers = 2 * share.model.key_heads_per_rank(share.tensor) * share.model.head_size
    tokens = share.micro_batch * share.model.sequence
    fabric = wiring.fabric(layout.mesh, "context")
    return 3 * cost.all_gather_s(tokens * numbers * layout.product_bytes, fabric)


def _to_experts_s(share: Share, layout: Layout, wiring: Wiring) -> float:
    """One layer's tokens to their experts and back, once; gradients go the same ways."""
    experts = share.model.experts
    if experts is None or layout.expert == 1:
        return 0.0
    rows = share.expert_rows * experts.count / layout.expert
    nbytes = rows * share.model.hidden * layout.product_bytes / layout.mesh.tensor
    return 2 * cost.all_to_all_s(nbytes, wiring.replicas(layout.mesh, layout.expert))


def _optimizer_s(model: Transformer, layout: Layout, wiring: Wiring) -> float:
    shared_by = layout.sharing if layout.zero else 1
    held = parameters_per_gpu(model, layout) / shared_by
    framework = FRAMEWORKS[layout.framework]
    moved_bytes = layout.recipe.moved_bytes + framework.gradient_bytes
    if layout.precision in ("fp16", "fp16-autocast"):
        moved_bytes += framework.scaled_bytes
    return traffic(int(held * moved_bytes)).seconds(wiring.accelerator)
