"""Trains a little on one GPU, and says how it was called."""

import argparse
import sys

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = nn.Sequential(nn.Linear(args.size, args.size), nn.ReLU(), nn.Linear(args.size, 1))
    net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(args.steps):
        x = torch.ones(8, args.size, device=device)
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{device.type} of {torch.cuda.device_count()}: {sys.argv[1:]} {loss.item():.4f}")


if __name__ == "__main__":
    main()
