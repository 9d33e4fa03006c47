"""What replicas exchange in a step: gradients and parameters, and what computing hides of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....machines import collective_cost as cost
from ....machines.hardware import Host
from ....vgpu.sim.pricing.kernel_cost import traffic
from ..layout import Layout
from ..mesh import Wiring
from ..transformer import Transformer

Exchange = Callable[[float, cost.Fabric], float]

# DeepSpeed's stage3_max_reuse_distance and stage3_max_live_parameters: what would be used again
# only after more parameters than these is let go, and gathered once more.
REUSED_PARAMETERS = 1e9


def parameters_per_gpu(model: Transformer, layout: Layout) -> float:
    """Those that the first stage's GPUs compute with, whether or not replicas share them."""
    mesh = layout.mesh
    layers = model.layers / mesh.pipeline * model.layer_parameters(mesh.tensor, layout.expert)
    words = 1 if model.tied or mesh.pipeline > 1 else 2
    return layers + words * model.word_parameters(mesh.tensor)


def expert_parameters_per_gpu(model: Transformer, layout: Layout) -> float:
    """Those of them that only every so many replicas have: the experts'."""
    mesh = layout.mesh
    return model.layers / mesh.pipeline * model.expert_parameters(mesh.tensor, layout.expert)


@dataclass(frozen=True)
class Computing:
    """Seconds of a micro-batch, forward and backward, beside which replicas may exchange."""

    forward_s: float
    backward_s: float


def between_replicas(
    model: Transformer, layout: Layout, wiring: Wiring, computing: Computing
) -> tuple[float, float]:
    """Seconds for gradients and for parameters, without what goes on beside the computing.

    Without ZeRO gradients are all-reduced at the end, beside the last micro-batch; with it they are
    reduce-scattered, in stages 2 and 3 after each micro-batch, and parameters all-gathered: once,
    in stage 3 in each forward and each backward pass, layer by layer or tensor by tensor.
    """
    if layout.mesh.replicas == 1:
        return 0.0, 0.0
    if not layout.overlap:
        computing = Computing(0.0, 0.0)
    exchange = _Exchange(model, layout, wiring, computing)
    if layout.zero == 0 or layout.sharing == 1:
        return exchange.all_reduced_s(), 0.0
    if layout.zero < 3:
        return exchange.summed_and_updated_s()
    if layout.gathers == "tensors":
        return exchange.by_tensors_s()
    return exchange.by_layers_s()


def copies_s(model: Transformer, layout: Layout, wiring: Wiring) -> float:
    """Seconds of a micro-batch in which FSDP copies what is exchanged, beside no computing.

    Of each gather a layer's parameters are copied out of the buffer, and its gradients into that of
    their sum (torch's `split_with_sizes_copy` and `_chunk_cat` in fsdp/_fsdp_collectives.py).
    """
    if layout.zero < 3 or layout.sharing == 1 or layout.gathers == "tensors":
        return 0.0
    each = layout.number_bytes
    moved = 2 * 2 * each + each + layout.summed_bytes
    nbytes = parameters_per_gpu(model, layout) * moved
    return traffic(int(nbytes)).seconds(wiring.accelerator)


def accumulating_s(model: Transformer, layout: Layout, wiring: Wiring) -> float:
    """Seconds in which the gradients of a micro-batch are added to those of the ones before.

    None where products add them: what they read and write hides behind their arithmetic. Else
    torch's AccumulateGrad adds the new gradient to the one that is there: two are read, one is
    written. Where they are kept in more bytes than a backward pass makes them in, the new one is
    smaller (nanotron's FP32GradientAccumulator). With ZeRO 2 and 3 they are added once they are
    summed, of each replica its part.
    """
    if layout.fused_gradients:
        return 0.0
    kept = layout.summed_bytes
    parameters = parameters_per_gpu(model, layout)
    if layout.zero < 2:
        moved = 2 * kept + min(layout.number_bytes, kept)
    else:
        moved, parameters = 3 * kept, parameters / layout.sharing
    return traffic(int(parameters * moved)).seconds(wiring.accelerator)


@dataclass(frozen=True)
class _Exchange:
    model: Transformer
    layout: Layout
    wiring: Wiring
    computing: Computing

    @property
    def layers(self) -> int:
        return max(self.model.layers // self.layout.mesh.pipeline, 1)

    @property
    def parameters(self) -> float:
        """Of a GPU, those that all replicas have."""
        experts = expert_parameters_per_gpu(self.model, self.layout)
        return parameters_per_gpu(self.model, self.layout) - experts

    @property
    def fabric(self) -> cost.Fabric:
        """That of the replicas which share."""
        return self.wiring.replicas(self.layout.mesh, self.layout.sharing)

    def all_reduced_s(self) -> float:
        mesh, each = self.layout.mesh, self.layout.summed_bytes
        fabric = self.wiring.replicas(mesh, mesh.replicas)
        total_s = cost.all_reduce_s(self.parameters * each, fabric)
        total_s += self._of_experts_s(cost.all_reduce_s)
        return self._exposed_s(total_s, self.computing.backward_s)

    def summed_and_updated_s(self) -> tuple[float, float]:
        layout = self.layout
        summing_s = self._half_s(layout.summed_bytes) + self._between_copies_s()
        gathering_s = self._half_s(layout.number_bytes)
        times = layout.micro_batches if layout.zero == 2 else 1
        return (
            times * self._exposed_s(summing_s, self.computing.backward_s),
            self._exposed_s(gathering_s, self.computing.forward_s),
        )

    def by_layers_s(self) -> tuple[float, float]:
        """Ahead of their use: gathers and sums of the backward pass share its time."""
        layout, layers = self.layout, self.layers
        summing_s = self._half_s(layout.summed_bytes, layers) + self._between_copies_s()
        gathering_s = self._half_s(layout.number_bytes, layers)
        back_s = self._exposed_s(summing_s + gathering_s, self.computing.backward_s)
        share = summing_s / (summing_s + gathering_s)
        ahead_s = self._exposed_s(gathering_s, self.computing.forward_s) + back_s * (1 - share)
        return layout.micro_batches * back_s * share, layout.micro_batches * ahead_s

    def by_tensors_s(self) -> tuple[float, float]:
        """When they are used, with nothing beside: a layer that is computed again and has more
        than `REUSED_PARAMETERS` is gathered a third time."""
        layout = self.layout
        again = layout.recompute == "full" and sum(self._tensors()) > REUSED_PARAMETERS
        summing_s = self._listed_s(layout.summed_bytes)
        gathering_s = self._listed_s(layout.number_bytes)
        gathers = 3 if again else 2
        return layout.micro_batches * summing_s, layout.micro_batches * gathers * gathering_s

    def _tensors(self) -> list[int]:
        """Parameters of the single tensors of a layer, experts of this rank included."""
        model, layout = self.model, self.layout
        qkv, out, *perceptron = model.matrices(layout.mesh.tensor)
        experts = 1 if model.experts is None else model.experts.count // layout.expert
        return [qkv, out, *perceptron * experts]

    def _listed_s(self, bytes_each: int) -> float:
        """All tensors of all layers, and the words', one after the other."""
        wiring, latency_s = self.wiring, self.wiring.accelerator.kernel_latency_s
        words = self.model.word_parameters(self.layout.mesh.tensor)
        counts = [(count, self.layers) for count in self._tensors()] + [(words, 1)]
        return sum(
            times * list_exchange_s(count * bytes_each, self.fabric, wiring.host, latency_s)
            for count, times in counts
        )

    def _half_s(self, bytes_each: int, pieces: int = 1) -> float:
        """A reduce-scatter or an all-gather, in pieces."""
        nbytes = self.parameters * bytes_each
        return pieces * cost.all_gather_s(nbytes / pieces, self.fabric) + self._of_experts_s(
            lambda experts, over: pieces * cost.all_gather_s(experts / pieces, over), bytes_each
        )

    def _of_experts_s(self, exchange: Exchange, bytes_each: int | None = None) -> float:
        """The same for experts, over those replicas that have the same ones."""
        layout = self.layout
        count = expert_parameters_per_gpu(self.model, layout)
        if not count or layout.expert == layout.mesh.replicas:
            return 0.0
        fabric = self.wiring.copies(layout.mesh, layout.expert)
        return exchange(count * (bytes_each or layout.summed_bytes), fabric)

    def _between_copies_s(self) -> float:
        """HSDP sums gradients over the groups that share, each part for itself."""
        mesh, sharing = self.layout.mesh, self.layout.sharing
        if sharing == mesh.replicas:
            return 0.0
        nbytes = self.parameters * self.layout.summed_bytes / sharing
        return cost.all_reduce_s(nbytes, self.wiring.copies(mesh, sharing))

    def _exposed_s(self, exchange_s: float, computing_s: float) -> float:
        """An exchange of all parameters goes over all replicas in the end."""
        fabric = self.wiring.replicas(self.layout.mesh, self.layout.mesh.replicas)
        nbytes = self.parameters * self.layout.summed_bytes / self.layers
        taken = cost.taken_share(nbytes, fabric, self.wiring.accelerator.multiprocessors)
        return exposed_s(exchange_s, computing_s, self.layers, taken=taken)


def list_exchange_s(nbytes: float, fabric: cost.Fabric, host: Host, kernel_s: float) -> float:
    """Seconds of an all-gather into a list of tensors, or a reduce-scatter from one.

    So DeepSpeed of 2021 gathered each parameter (partition_parameters.py): it cuts the result into
    a view for each rank, and torch's ProcessGroupNCCL copies what came to each of them, a kernel a
    rank. The host queues them beside the exchange; they run after it, and last `kernel_s` each.
    """
    queueing_s = fabric.ranks * (host.dispatch_s + host.view_s)
    exchange_s = max(cost.all_gather_s(nbytes, fabric), queueing_s)
    return fabric.ranks * (host.view_s + kernel_s) + exchange_s


def exposed_s(exchange_s: float, computing_s: float, pieces: int, *, taken: float = 0.0) -> float:
    """What computing beside an exchange does not hide of it.

    At least the one of so many pieces that is outside it, and what the computing loses to kernels
    that have taken this share of the GPU.
    """
    if not computing_s:
        return exchange_s
    return max(exchange_s - computing_s, exchange_s / pieces + taken * exchange_s)
