"""Greedy answers of a PyTorch model, without a cache: slow, and free of everything that a runtime could get
wrong."""

import torch
from tokenizers import Tokenizer

from model import GLM
from vocabulary import END_OF_TEXT, STOP


@torch.no_grad()
def complete(
    model: GLM,
    tokenizer: Tokenizer,
    prompts: list[str],
    tokens_max: int = 96,
    sparse: bool = True,
    batch: int = 64,
) -> list[str]:
    """The continuation of each prompt up to a stop token (not included) or tokens_max tokens."""
    device = next(model.parameters()).device
    stop, answers = torch.tensor(STOP, device=device), []
    for first in range(0, len(prompts), batch):
        ids = [
            e.ids for e in tokenizer.encode_batch(prompts[first : first + batch], add_special_tokens=False)
        ]
        rows = torch.arange(len(ids), device=device)
        x = torch.full(
            (len(ids), max(map(len, ids)) + tokens_max), END_OF_TEXT, dtype=torch.long, device=device
        )
        for row, prompt in enumerate(ids):
            x[row, : len(prompt)] = torch.tensor(prompt)
        length = torch.tensor([len(prompt) for prompt in ids], device=device)
        done = torch.zeros(len(ids), dtype=torch.bool, device=device)
        for _ in range(tokens_max):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                # causal: what stands right of a row's end is never seen
                f = model(x[:, : int(length.max())], sparse=sparse, eager=True)[0]
                best = model.lm_head(f[rows, length - 1]).argmax(-1)
            done |= torch.isin(best, stop)
            x[rows, length] = torch.where(done, x[rows, length], best)
            length = torch.where(done, length, length + 1)
            if done.all():
                break
        answers += [
            tokenizer.decode(x[row, len(prompt) : length[row]].tolist(), skip_special_tokens=False)
            for row, prompt in enumerate(ids)
        ]
    return answers
