"""Solutions of the exercises of lesson 08; `tests/answers/test_checks.py` runs them."""

from torch.nn import functional as F


def by_input_channels(conv, X, devices):
    """Slices meet slices; the bias is added once, to the sum."""
    slices = [
        t.tensor_split(len(devices), dim=1) for t in (X, conv.weight)
    ]
    summands = [
        F.conv2d(
            x.to(device),
            w.to(device),
            stride=conv.stride,
            padding=conv.padding,
        ).to(X.device)
        for x, w, device in zip(*slices, devices, strict=True)
    ]
    return sum(summands) + conv.bias.view(-1, 1, 1)
