"""A program for one GPU: a small GPT learns to continue bytes. What `bench_run.py` runs.

`python small_gpt.py STEPS` works on CUDA if there is one, else on the processor.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT, BATCH, VOCABULARY = 4, 4, 128, 64, 12, 65


class Block(nn.Module):
    """Attention and a perceptron, each beside its input."""

    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.to_qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.to_qkv(self.before_attention(x)).split(WIDTH, dim=2)
        q, k, v = (t.view(batch, length, HEADS, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class SmallGPT(nn.Module):
    """Byte by byte, `LAYERS` blocks between an embedding and its transpose."""

    def __init__(self):
        super().__init__()
        self.bytes, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.last = (
            nn.Sequential(*[Block() for _ in range(LAYERS)]),
            nn.LayerNorm(WIDTH),
        )

    def forward(self, text):
        x = self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.last(self.blocks(x)) @ self.bytes.weight.T


def main(steps):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = SmallGPT().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)
    data = torch.randint(VOCABULARY, (100_000,))
    for step in range(steps):
        starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,))
        text = torch.stack([data[i : i + CONTEXT + 1] for i in starts])
        x, y = text[:, :-1].contiguous().to(device), text[:, 1:].contiguous().to(device)
        loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
