"""Lightning Fabric: gradient accumulation, autocast, losses of all ranks, a checkpoint."""

import sys

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

path, precision, strategy = sys.argv[1:4]
fabric = Fabric(accelerator="cuda", devices=2, strategy=strategy, precision=precision)
fabric.launch()
fabric.seed_everything(0)
net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
data = TensorDataset(torch.randn(48, 8), torch.randint(0, 4, (48,)))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
net, optimizer = fabric.setup(net, optimizer)
batches = fabric.setup_dataloaders(DataLoader(data, batch_size=4))
losses = []
for step, (x, y) in enumerate(batches):
    accumulates = step % 2 == 0
    with fabric.no_backward_sync(net, enabled=accumulates):
        loss = nn.functional.cross_entropy(net(x), y)
        fabric.backward(loss / 2)
    if not accumulates:
        fabric.clip_gradients(net, optimizer, max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(fabric.all_gather(loss.detach()).mean().item())
fabric.save(path, {"net": net, "losses": losses, "where": (str(fabric.device), fabric.world_size)})
