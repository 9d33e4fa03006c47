"""Traced dependency graphs, against graphs written down by hand."""

import networkx
import pytest
import torch

import d2lpar as par
from d2lpar import plots


@pytest.fixture(autouse=True)
def devices():
    return par.devices(2, kind="virtual", verbose=False)


def named_edges(graph):
    """Edges as pairs of names; operations of one name are numbered in the order they ran."""
    seen, names = {}, []
    for node in graph.nodes:
        seen[node.name] = seen.get(node.name, 0) + 1
        names.append(f"{node.name} {seen[node.name]}")
    return {(names[a], names[b]) for a, b in graph.edges}


@pytest.mark.parametrize("device", ["cpu", "vgpu:0"])
def test_two_initialisations_do_not_depend_on_each_other(device):
    with par.trace_graph() as graph:
        a = torch.ones(2, device=device)
        b = torch.ones(2, device=device)
        a + b
    assert named_edges(graph) == {("ones 1", "add 1"), ("ones 2", "add 1")}
    first, second, total = graph.nodes
    assert graph.depends(total, first)
    assert not graph.depends(second, first)


@pytest.mark.parametrize("device", ["cpu", "vgpu:1"])
def test_writing_in_place_comes_after_those_who_read(device):
    w = torch.ones(3, device=device)
    with par.trace_graph(w=w) as graph:
        double = w * 2  # reads w
        w -= 1  # must wait for that
        w + double
    assert named_edges(graph) == {
        ("w 1", "mul 1"),
        ("w 1", "sub 1"),
        ("mul 1", "sub 1"),
        ("mul 1", "add 1"),
        ("sub 1", "add 1"),
    }


def test_views_are_no_operations_and_pass_dependencies_on():
    x = torch.ones(4, 4, device="vgpu:0")
    with par.trace_graph(x=x) as graph:
        row = x.t()[1]
        row.zero_()
        x.sum()
    assert [node.name for node in graph.operations] == ["zero", "sum"]
    assert ("zero 1", "sum 1") in named_edges(graph)


def test_what_is_only_overwritten_is_not_read():
    with par.trace_graph() as graph:
        target = torch.zeros(2)
        target.copy_(torch.ones(2))
    assert named_edges(graph) == {("ones 1", "copy 1")}


def test_results_and_random_numbers_overwrite():
    a, b = torch.ones(2, 2), torch.ones(2, 2)
    with par.trace_graph(a=a, b=b) as graph:
        target = torch.empty(2, 2)
        torch.add(a, b, alpha=2, out=target)
        torch.empty(2).normal_()
    assert named_edges(graph) == {("a 1", "add 1"), ("b 1", "add 1")}
    assert [node.name for node in graph.nodes] == ["a", "b", "add", "normal"]


def test_a_number_of_the_host_makes_no_copy_of_an_operation():
    v = torch.ones(2, device="vgpu:0")
    with par.trace_graph(v=v) as graph:
        v * torch.tensor(2.0)
    assert [(n.name, n.is_copy) for n in graph.operations if n.place != "host"] == [("mul", False)]


def test_copies_end_where_their_result_is():
    x = torch.ones(2)
    with par.trace_graph(x=x) as graph:
        x.to("vgpu:1").to("vgpu:0").cpu()
    assert [(n.name, n.place, n.is_copy) for n in graph.operations] == [
        ("copy", "vgpu:1", True),
        ("copy", "vgpu:0", True),
        ("copy", "host", True),
    ]
    assert len(graph.longest_chain()) == 3


def test_backward_is_traced_and_devices_are_independent(devices):
    w = torch.ones(3, 3)
    with par.trace_graph(w=w) as graph:
        for device in devices:
            replica = w.to(device).requires_grad_()
            (replica @ replica).sum().backward()
    work = [[n for n in graph.operations if n.place == str(d)] for d in devices]
    assert [n.name for n in work[0]] == [n.name for n in work[1]]
    assert sum(n.name == "mm" for n in work[0]) == 3  # one forward, two backward
    assert not any(graph.depends(b, a) for a in work[0] for b in work[1])


def test_the_trace_is_a_graph_without_cycles():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    net.to("vgpu:0")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with par.trace_graph() as graph:
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.ones(2, 4, device="vgpu:0")).sum().backward()
            optimizer.step()
    assert networkx.is_directed_acyclic_graph(graph.digraph())
    assert all(a < b for a, b in graph.edges)


def test_unnamed_inputs_appear_by_their_shape():
    x = torch.ones(5, 7)
    with par.trace_graph() as graph:
        x.exp()
    assert [(n.name, n.is_input) for n in graph.nodes] == [("5 × 7", True), ("exp", False)]


def test_a_picture_names_operations_and_places():
    with par.trace_graph() as graph:
        torch.ones(2).to("vgpu:0").neg()
    picture = plots.graph(graph, note="traced")
    assert picture.summary == "Dependency graph of 3 operations on host, vgpu:0 · traced"
    words = {text.get_text() for text in picture.axes[0].texts}
    assert {"ones", "copy", "neg"} <= words


def test_labels_can_be_read_and_stay_in_their_boxes(devices):
    X, W = torch.rand(8, 6), torch.rand(6, 4)
    with par.trace_graph(X=X, W=W) as graph:
        for device in devices:
            V = W.to(device).requires_grad_()
            labels = torch.zeros(8, dtype=torch.int64, device=device)
            torch.nn.functional.cross_entropy((X.to(device) @ V).relu(), labels).backward()
            W -= V.grad.cpu()
    picture = plots.graph(graph)
    picture.draw_without_rendering()
    width_px, _ = picture.get_size_inches() * picture.dpi
    assert width_px <= 760
    (ax,) = picture.axes
    boxes = ax.patches[-len(ax.texts) :]
    for label, box in zip(ax.texts, boxes, strict=True):
        assert label.get_fontsize() * picture.dpi / 72 >= 9, label
        assert label.get_window_extent().width <= box.get_window_extent().width, label
    for text in picture.legends[0].get_texts():
        assert text.get_window_extent().x1 <= width_px


def test_operations_stand_above_those_that_need_them():
    with par.trace_graph() as graph:
        early, late = torch.ones(2), torch.zeros(2)
        early.neg().exp().add(late)
    (ax,) = plots.graph(graph).axes
    y = {text.get_text(): text.get_position()[1] for text in ax.texts}
    assert y["ones"] < y["neg"] < y["exp"] == y["zeros"] < y["add"]


def test_an_empty_graph_cannot_be_drawn():
    with par.trace_graph() as graph:
        pass
    with pytest.raises(ValueError, match="no operation to draw"):
        plots.graph(graph)


def test_small_and_large_graphs_are_equally_wide_with_boxes_of_one_size():
    def boxes(count):
        with par.trace_graph() as graph:
            for _ in range(count):
                torch.ones(2)
        picture = plots.graph(graph)
        picture.canvas.draw()
        extents = [patch.get_window_extent() for patch in picture.axes[0].patches[-count:]]
        return picture.get_size_inches()[0], {round(extent.width) for extent in extents}

    assert boxes(1) == boxes(2) == boxes(6)
