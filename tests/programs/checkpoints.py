"""Saving on one GPU, loading on another, on the CPU, and where it was."""

import io

import torch
from torch import nn


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return file


torch.manual_seed(1)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).cuda(1)
optimizer = torch.optim.Adam(net.parameters())
net(torch.ones(3, 4, device="cuda:1")).sum().backward()
optimizer.step()
state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}

where_it_was = torch.load(saved(state))
on_cpu = torch.load(saved(state), map_location="cpu")
on_first = torch.load(saved(state), map_location="cuda:0")
by_device = torch.load(saved(state), map_location=torch.device("cuda", 0))
by_table = torch.load(saved(state), map_location={"cuda:1": "cuda:0"})
by_function = torch.load(saved(state), map_location=lambda storage, location: storage.cuda(0))
stays = torch.load(saved(state), map_location=lambda storage, location: storage)
devices = [
    str(loaded["net"]["0.weight"].device)
    for loaded in (where_it_was, on_cpu, on_first, by_device, by_table, by_function, stays)
]

again = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to("cuda:0")
again.load_state_dict(on_cpu["net"])
more = torch.optim.Adam(again.parameters())
more.load_state_dict(state["optimizer"])
moments = {
    str(value.device)
    for moment in more.state_dict()["state"].values()
    for key, value in moment.items()
    if key != "step"
}
parallel = nn.DataParallel(again)
names = list(parallel.state_dict())
x = torch.rand(5, 4)
same = torch.equal(again(x.cuda()).cpu(), net(x.to("cuda:1")).cpu())
print(devices, moments, same)
