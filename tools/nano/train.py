"""Trains glm52-nano on one GPU. Resumable: run it again with the same --state and it goes on.

    python tools/nano/train.py --carried FOLDER --state STATE --minutes 9 --total-minutes 18

The schedule follows progress: wall time over --total-minutes summed over the runs (or tokens over --tokens,
which makes a run repeatable). Up to --sparse-from attention is dense and the indexer learns from it by KL;
from then on attention is the real top-64 selection, with windows of --sparse-time tokens. The learning rates
are constant, then fall linearly to 3 % from --decay-from on. Expert load is balanced by the router's
correction bias alone.
"""

import argparse
import json
import math
import os
import signal
import sys
import time as clock
from pathlib import Path

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor

from data import Conversations, Corpus, prepare, read_ids, spread_windows
from measure import measure, unpack
from model import CONFIG, GLM, MoE, save_hf
from optimizer import Muon

STARTED = clock.time()
MTP_WEIGHT = 0.3
BIAS_SPEED = 1e-3  # of the correction bias, per step


def arguments() -> argparse.Namespace:
    cuda = torch.cuda.is_available()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--carried", type=Path, required=True, help="corpus-*.txt.bz2, valid.*, tokenizer*.json")
    p.add_argument("--state", type=Path, required=True, help="unpacked data, checkpoint, STATE/hf")
    p.add_argument(
        "--repeats", default="", help="how often each corpus part comes in an epoch, like 1,5 (default 1)"
    )
    p.add_argument("--minutes", type=float, default=9.0, help="this run; evaluating and saving come on top")
    p.add_argument("--total-minutes", type=float, default=18.0)
    p.add_argument("--tokens", type=float, default=0)
    p.add_argument("--steps", type=int, default=0, help="stop after so many steps of this run (for tests)")
    p.add_argument("--batch-tokens", type=int, default=128 * 512)
    p.add_argument("--time", type=int, default=512)
    p.add_argument("--sparse-time", type=int, default=1024)
    p.add_argument("--chat", type=float, default=0.2, help="share of conversations among the windows")
    p.add_argument("--chat-end", type=float, default=0.3, help="the same in the decay phase")
    p.add_argument("--sparse-from", type=float, default=0.75)
    p.add_argument("--decay-from", type=float, default=0.6)
    p.add_argument(
        "--index-share", type=float, default=0.25, help="share of the windows that train the indexer"
    )
    p.add_argument("--muon-lr", type=float, default=0.02)
    p.add_argument("--weight-decay", type=float, default=0.05)
    p.add_argument("--warmup", type=int, default=150)
    p.add_argument("--conversations", type=int, default=300_000)
    p.add_argument("--log-seconds", type=float, default=20)
    p.add_argument("--eval-seconds", type=float, default=120)
    p.add_argument("--eval-windows", type=int, default=128)
    p.add_argument("--eager", action="store_true", help="no torch.compile")
    p.add_argument("--device", default="cuda" if cuda else "cpu")
    return p.parse_args()


def say(*words: object) -> None:
    print(f"[{clock.time() - STARTED:6.1f}s]", *words, flush=True)


def adam_group(name: str, p: Tensor) -> tuple[float, float]:
    """(learning rate, weight decay) of a parameter that Muon does not take."""
    if name.endswith("embed_tokens.weight"):
        return 4e-3, 0.0
    if name == "lm_head.weight":
        return 2e-3, 0.01
    if p.dim() == 1:
        return 3e-3, 0.0
    if name.endswith("gate.weight") and p.shape[0] == CONFIG["n_routed_experts"]:
        return 5e-4, 0.0
    return 1.5e-3, 0.01  # the indexer


def takes_muon(name: str, p: Tensor) -> bool:
    return (
        name.startswith("model.layers.")
        and p.dim() >= 2
        and ".indexer." not in name
        and not name.endswith("mlp.gate.weight")
    )


def cross_entropy(f: Tensor, weight: Tensor, target: Tensor, counts: Tensor) -> Tensor:
    loss = F.cross_entropy(F.linear(f, weight).float().flatten(0, 1), target.flatten(), reduction="none")
    mask = counts.flatten().float()
    return (loss * mask).sum() / mask.sum().clamp(min=1)


class Trainer:
    def __init__(self, a: argparse.Namespace) -> None:
        self.a, self.cuda = a, a.device.startswith("cuda")
        torch.manual_seed(1)
        self.load_data()
        self.model = GLM(seed=0).to(a.device)
        named = list(self.model.named_parameters())
        self.muon = Muon([(n, p) for n, p in named if takes_muon(n, p)], a.muon_lr, a.weight_decay)
        groups: dict[tuple[float, float], list[Tensor]] = {}
        for n, p in named:
            if not takes_muon(n, p):
                groups.setdefault(adam_group(n, p), []).append(p)
        self.adam = torch.optim.AdamW(
            [{"params": ps, "lr": lr, "lr0": lr, "weight_decay": wd} for (lr, wd), ps in groups.items()],
            betas=(0.9, 0.95),
            eps=1e-10,
            fused=self.cuda,
        )
        self.biases = [x.mlp.gate.e_score_correction_bias for x in self.model.model.layers if x.moe]
        self.step, self.tokens, self.wall_before = 0, 0, 0.0
        self.phase: bool | None = None  # sparse or not, once batches are made
        self.corpus_state = (-1, 0, 0, 0)  # time, ids, epoch, at
        self.checkpoint = a.state / "state.pt"
        if self.checkpoint.exists():
            self.resume()
        self.generator = torch.Generator(device=a.device).manual_seed(7 + self.step)
        self.cross_entropy = cross_entropy
        MoE.grouped = self.cuda
        if self.cuda and not a.eager:
            torch._dynamo.config.recompile_limit = 64
            self.model.run = [torch.compile(x.forward, dynamic=False) for x in self.model.model.layers]
            self.cross_entropy = torch.compile(cross_entropy, dynamic=False)
        say(f"{sum(p.numel() for _, p in named) / 1e6:.1f} M parameters, step {self.step}")

    def load_data(self) -> None:
        a = self.a
        a.state.mkdir(parents=True, exist_ok=True)
        prepare(a.carried, a.state, a.conversations, min(16, os.cpu_count() or 1))
        paths = sorted(a.state.glob("corpus-*.bin"))
        self.parts = [read_ids(path, a.device) for path in paths]
        self.repeats = [int(x) for x in a.repeats.split(",")] if a.repeats else [1] * len(self.parts)
        self.chat_ids = read_ids(a.state / "chat.bin", a.device)
        self.valid = read_ids(a.state / "valid.bin", a.device)
        self.chat_held = read_ids(a.state / "chat_held.bin", a.device)
        self.bytes_per_token = json.loads((a.state / "valid.json").read_text())["bytes_per_token"]
        say(
            f"corpus {[len(p) / 1e6 for p in self.parts]} M tokens, chat {len(self.chat_ids) / 1e6:.1f} M, "
            f"held-out text {len(self.valid) / 1e6:.2f} M"
        )

    # ---- schedule ----

    def wall(self) -> float:
        return self.wall_before + clock.time() - STARTED

    def progress(self) -> float:
        a = self.a
        return min(1.0, self.tokens / a.tokens if a.tokens else self.wall() / (a.total_minutes * 60))

    def lr_scale(self, progress: float) -> float:
        scale, decay = min(1.0, (self.step + 1) / self.a.warmup), self.a.decay_from
        if progress > decay:
            scale *= max(0.0, 1 - (progress - decay) / (1 - decay)) * 0.97 + 0.03
        return scale

    def enter_phase(self, sparse: bool) -> None:
        """Batches of the phase's window length; an epoch is resumed only over the same windows."""
        self.phase, self.time = sparse, self.a.sparse_time if sparse else self.a.time
        time, size, epoch, at = self.corpus_state
        same = time == self.time and size == sum(map(len, self.parts))
        self.corpus = Corpus(
            self.parts, self.repeats, self.time, epoch if same else epoch + 1, at if same else 0
        )
        self.conversations = Conversations(self.chat_ids, self.time)
        say("sparse" if sparse else "dense", f"phase, windows of {self.time}, progress {self.progress():.3f}")

    # ---- one step ----

    def batch(self, progress: float) -> Tensor:
        rows = max(1, self.a.batch_tokens // self.time)
        talk = round(rows * (self.a.chat if progress < self.a.decay_from else self.a.chat_end))
        windows = torch.cat([self.corpus.take(rows - talk), self.conversations.take(talk, self.generator)])
        # mixed, so that the windows that train the indexer are a fair sample
        return windows[torch.randperm(rows, generator=self.generator, device=self.a.device)]

    def train_step(self, progress: float) -> tuple[Tensor, Tensor]:
        time, device = self.time, "cuda" if self.cuda else "cpu"
        ids, visible, first, second = unpack(self.model, self.batch(progress), time)
        with torch.autocast(device, torch.bfloat16):
            f, m, kls, counts = self.model(
                ids[:, :time],
                ids[:, 1 : time + 1],
                visible,
                sparse=bool(self.phase),
                index_rows=max(1, int(len(ids) * self.a.index_share)),
            )
            loss = self.cross_entropy(f, self.model.lm_head.weight, ids[:, 1 : time + 1], first)
            mtp = self.cross_entropy(m, self.model.lm_head.weight, ids[:, 2:], second)
        (loss + MTP_WEIGHT * mtp + kls.sum()).backward()
        scale = self.lr_scale(progress)
        norm = torch.nn.utils.clip_grad_norm_([p for g in self.adam.param_groups for p in g["params"]], 1.0)
        for group in self.adam.param_groups:
            group["lr"] = group["lr0"] * scale
        self.adam.step()
        self.muon.step(self.muon.lr * scale, min(0.95, 0.85 + 0.1 * self.step / 300))
        for p in self.model.parameters():
            p.grad = None
        load = torch.stack(counts).float()
        self.balance(load, scale)
        self.step += 1
        self.tokens += ids.shape[0] * time
        return torch.stack([loss.detach(), mtp.detach(), *kls.detach(), norm.detach()]), load

    @torch.no_grad()
    def balance(self, load: Tensor, scale: float) -> None:
        """Moves each correction bias against its expert's load; faster at first, against an early
        collapse."""
        speed = BIAS_SPEED * max(scale, 0.3) * (1 + 9 * math.exp(-self.step / 200))
        for bias, row in zip(self.biases, (load.mean(1, keepdim=True) - load).sign() * speed, strict=True):
            bias.add_(row)

    # ---- evaluation, saving ----

    def evaluate(self) -> None:
        self.model.eval()
        count = self.a.eval_windows
        text = spread_windows(self.valid, self.a.time, count)
        chat = Conversations(self.chat_held, self.a.time).spread(count // 2)
        long = spread_windows(self.valid, self.a.sparse_time, count // 2)
        for name, windows in (("text", text), ("text-long", long), ("chat-held", chat)):
            for sparse in (False, True):
                got = measure(self.model, windows, sparse)
                bits = (
                    f" bits/byte {got.bits_per_byte(self.bytes_per_token):.4f}" if name != "chat-held" else ""
                )
                say(
                    f"EVAL {name} {'sparse' if sparse else 'dense'}: loss {got.loss:.4f}{bits} "
                    f"top1 {got.top1:.3f} drafts accepted {got.accepted:.3f}"
                )
        self.model.train()

    def save(self) -> None:
        kept = {
            "model": self.model.state_dict(),
            "adam": self.adam.state_dict(),
            "muon": self.muon.momentum,
            "numbers": [self.step, self.tokens, self.wall()],
            "corpus": [self.time, len(self.corpus.ids), self.corpus.epoch, self.corpus.at],
        }
        part = self.checkpoint.with_suffix(".part")
        torch.save(kept, part)
        part.replace(self.checkpoint)
        save_hf(self.model, self.a.state / "hf", self.a.state)
        say("saved", self.checkpoint, f"{self.checkpoint.stat().st_size / 2**20:.0f} MiB, step {self.step}")

    def resume(self) -> None:
        kept = torch.load(self.checkpoint, map_location=self.a.device, weights_only=True)
        self.model.load_state_dict(kept["model"])
        self.adam.load_state_dict(kept["adam"])
        for buffer, saved in zip(self.muon.momentum, kept["muon"], strict=True):
            buffer.copy_(saved)
        self.step, self.tokens, self.wall_before = kept["numbers"]
        self.corpus_state = tuple(kept["corpus"])
        say("resumed at step", self.step, f"{self.tokens / 1e6:.1f} M tokens, {self.wall_before:.0f} s")

    # ---- the loop ----

    def report(self, sums: list[Tensor], load: Tensor, seconds: float, tokens: int, progress: float) -> None:
        mean = torch.stack(sums).mean(0).tolist()
        loads = " ".join(f"{x:.2f}" for x in (load.max(1).values / load.mean(1)).tolist())
        kls = " ".join(f"{x:.3f}" for x in mean[2:-1])
        say(
            f"step {self.step} progress {progress:.3f} lr {self.lr_scale(progress):.3f} "
            f"{self.tokens / 1e6:.1f} M tokens epoch {self.corpus.epoch} "
            f"loss {mean[0]:.4f} mtp {mean[1]:.4f} kl {kls} "
            f"norm {mean[-1]:.2f} load {loads} {tokens / seconds / 1e3:.0f}k tokens/s"
        )
        if not math.isfinite(mean[0]):
            say("the loss is not finite: stopping without saving")
            sys.exit(1)

    def run(self) -> None:
        a, stop, first_step = self.a, [False], self.step
        signal.signal(signal.SIGTERM, lambda *_: stop.__setitem__(0, True))
        logged, evaluated, tokens, sums = clock.time(), clock.time(), self.tokens, []
        while not stop[0] and clock.time() - STARTED < a.minutes * 60 and self.progress() < 1:
            if a.steps and self.step - first_step >= a.steps:
                break
            progress = self.progress()
            sparse = progress >= a.sparse_from
            if sparse != self.phase:
                if self.phase is not None:
                    self.corpus_state = (self.time, 0, self.corpus.epoch, 0)
                self.enter_phase(sparse)
            values, load = self.train_step(progress)
            sums.append(values)
            if clock.time() - logged > a.log_seconds:
                self.report(sums, load, clock.time() - logged, self.tokens - tokens, progress)
                logged, tokens, sums = clock.time(), self.tokens, []
            if clock.time() - evaluated > a.eval_seconds:
                self.evaluate()
                logged, evaluated, tokens = clock.time(), clock.time(), self.tokens
        if sums:
            self.report(sums, load, max(clock.time() - logged, 1e-3), self.tokens - tokens, self.progress())
        if self.cuda:
            say(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
        self.save()
        self.evaluate()


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    Trainer(arguments()).run()
