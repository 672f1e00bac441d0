"""A training loop that knows nothing of ascend-perf: a small transformer on made-up text.

    ascend-perf collect -- python examples/own_loop.py
    ascend-perf collect -- torchrun --nproc-per-node 2 examples/own_loop.py
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY = 512


class Model(nn.Module):
    """Token and position embedding, encoder layers with a causal mask, output over the vocabulary."""

    def __init__(self, width: int, layers: int, tokens: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(tokens, width))
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(tokens))

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:  # B batch, T tokens
        return self.output(self.layers(self.token(tokens_BT) + self.position, mask=self.mask))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()

    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: nn.Module = Model(arguments.width, arguments.layers, arguments.tokens).to(device)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.randint(0, VOCABULARY, (arguments.steps * arguments.batch, arguments.tokens + 1))
    for step, (tokens_BT,) in enumerate(DataLoader(TensorDataset(text), batch_size=arguments.batch)):
        tokens_BT = tokens_BT.to(device)
        logits_BTV = model(tokens_BT[:, :-1])
        loss = nn.functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step + 1} loss {loss.item():.4f}")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
