"""Hugging Face accelerate: gradient accumulation, autocast, metrics of all ranks, a checkpoint."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

path, precision, sharding = sys.argv[1:4]
plugin = None
if sharding == "fsdp":
    from accelerate import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1
    )
accelerator = Accelerator(
    gradient_accumulation_steps=2, mixed_precision=precision, fsdp_plugin=plugin
)
set_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
data = TensorDataset(torch.randn(48, 8), torch.randint(0, 4, (48,)))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
net, optimizer, batches, schedule = accelerator.prepare(
    net, optimizer, DataLoader(data, batch_size=4), schedule
)
losses = []
for x, y in batches:
    with accelerator.accumulate(net):
        loss = nn.functional.cross_entropy(net(x), y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    losses.append(accelerator.gather(loss.detach()).mean().item())
accelerator.wait_for_everyone()
state = accelerator.get_state_dict(net)
if accelerator.is_main_process:
    where = str(accelerator.device), type(net).__name__, accelerator.num_processes
    torch.save({"state": state, "losses": losses, "where": where}, path)
accelerator.end_training()
