"""Training in mixed precision, with the loss scaled and the gradients clipped."""

import torch
from torch import nn

use_amp = True
device = "cuda"
torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = True

torch.manual_seed(0)
torch.cuda.manual_seed_all(0)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.LayerNorm(256), nn.Linear(256, 1)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
loss_fn = nn.MSELoss().cuda()

generator = torch.Generator().manual_seed(3)
data = torch.randn(128, 64, generator=generator)
goal = data[:, :1] - data[:, 1:2]
losses, dtypes = [], set()
for _ in range(40):
    input, target = data.to(device, non_blocking=True), goal.to(device, non_blocking=True)
    with torch.autocast(device_type=device, dtype=torch.float16, enabled=use_amp):
        output = net(input)
        dtypes.add(output.dtype)
        loss = loss_fn(output, target)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item())

inside = torch.is_autocast_enabled()
with torch.autocast("cuda", dtype=torch.bfloat16):
    also = net(input).dtype
peak = torch.cuda.max_memory_allocated()
print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, scale {scaler.get_scale()}, {peak / 1e6:.1f} MB")
