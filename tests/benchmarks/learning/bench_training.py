"""Training tokens/s of the Lightning run beside a plain PyTorch loop of the same steps.

    python -m tests.benchmarks.learning.bench_training --model smollm2 --layers 4 --threads 2

Both train a cut of the model on the same made-up batches with the same loss, optimiser, schedule and clipping,
in one process, and take turns of a few steps. With `--chunks` the time of the loss and its gradient, from the
states to their gradient, is measured instead, for several numbers of logits alive at a time.
"""

import argparse
import copy
import statistics
import tempfile
import time
from pathlib import Path

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from hotdraft.pipeline.config.learning import TrainingSection
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import choose_device, choose_dtype, load_causal_lm
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import NOT_DRAFTED, ReplaySample
from hotdraft.pipeline.store.connection import open_client
from hotdraft.training.batches.packing import PackedBatch
from hotdraft.training.batches.pools import everything
from hotdraft.training.batches.replay_data import ReplayDataModule, Selection
from hotdraft.training.batches.stream import Batching
from hotdraft.training.drafts.draft_init import cut_layers, freeze_shared
from hotdraft.training.fit import run
from hotdraft.training.fit.module import WARMUP_STEPS, DistillationModule
from hotdraft.training.scoring import forward
from hotdraft.training.scoring.forward import OutputHead, disable_dropout, hidden_states
from hotdraft.training.scoring.position_scores import position_scores

TOP_K = 64
PROMPT, ANSWER = 60, 90
"""Tokens of a made-up request."""


def made_up(index: int, vocab_size: int) -> ReplaySample:
    generator = np.random.default_rng(index)
    logprobs = np.log(generator.dirichlet(np.ones(TOP_K + 1), ANSWER))
    return ReplaySample(
        request_id=f"r{index}",
        created_at=float(index),
        domain="d",
        temperature=1.0,
        prompt_ids=generator.integers(0, vocab_size, PROMPT).astype(np.int32),
        output_ids=generator.integers(0, vocab_size, ANSWER).astype(np.int32),
        target_top_ids=np.stack([generator.choice(vocab_size, TOP_K, replace=False) for _ in range(ANSWER)]),
        target_top_logprobs=logprobs[:, :TOP_K].astype(np.float16),
        target_tail_logprob=logprobs[:, TOP_K].astype(np.float32),
        drafted_ids=np.full(ANSWER, NOT_DRAFTED, np.int32),
        accepted=np.zeros(ANSWER, bool),
        draft_versions=np.zeros(ANSWER, np.int32),
    )


def build(arguments: argparse.Namespace) -> tuple[PreTrainedModel, torch.dtype]:
    """The draft with float32 copies of what trains, and the dtype to compute in."""
    device = choose_device(arguments.device)
    dtype = choose_dtype(arguments.dtype, device)
    target = load_causal_lm(arguments.model, dtype=dtype, device=device)
    draft = cut_layers(target, range(arguments.layers))
    freeze_shared(draft)
    for parameter in draft.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return draft, dtype


class PlainLoop:
    """The same steps by hand."""

    def __init__(self, draft: PreTrainedModel, dtype: torch.dtype, data: ReplayDataModule, steps: int) -> None:
        disable_dropout(draft)
        self._draft = draft.train()
        self._head = OutputHead(draft)
        self._dtype = dtype
        self._batches = iter(DataLoader(data.batches(), batch_size=None))
        self._parameters = [parameter for parameter in draft.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)
        rate = DistillationModule(
            draft, loss="forward_kl", learning_rate=1e-3, max_steps=steps, warmup_steps=WARMUP_STEPS
        )._rate
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, rate)

    def step(self) -> int:
        """Take one; its tokens."""
        device = self._draft.device
        batch = next(self._batches).on(device)
        with torch.autocast(device.type, self._dtype, enabled=self._dtype != torch.float32):
            hidden = hidden_states(self._draft, batch)
            loss = (
                position_scores(hidden, self._head, batch=batch, loss="forward_kl", measure=False).loss
                / batch.weight.sum()
            )
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._schedule.step()
        return batch.input_ids.numel()


class Turns(Callback):
    """After every `steps` steps of the trainer, as many of the plain loop; seconds for a token of both, by turn."""

    def __init__(self, plain: PlainLoop, steps: int) -> None:
        self._plain = plain
        self._steps = steps
        self._tokens = 0
        self._since = 0.0
        self.trainer: list[float] = []
        self.plain: list[float] = []

    def on_train_start(self, *_: object) -> None:
        self._since = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch: PackedBatch, batch_idx: int) -> None:  # type: ignore[no-untyped-def, override]
        self._tokens += batch.input_ids.numel()
        if (batch_idx + 1) % self._steps:
            return
        now = _clock()
        self.trainer.append((now - self._since) / self._tokens)
        tokens = sum(self._plain.step() for _ in range(self._steps))
        self._since = _clock()
        self.plain.append((self._since - now) / tokens)
        self._tokens = 0


def _clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def compare(arguments: argparse.Namespace, folder: Path) -> None:
    draft, dtype = build(arguments)
    data = load(arguments, draft, folder)
    client = open_client(HotdraftConfig(target="unused", run_dir=folder))
    run_id = client.create_run(client.create_experiment("bench")).info.run_id
    steps = arguments.steps * (arguments.turns + 1)
    turns = Turns(PlainLoop(copy.deepcopy(draft), dtype, data, steps), arguments.steps)
    run.Throughput = lambda *_: turns  # type: ignore[assignment, misc]  # the one place where a callback goes in
    settings = TrainingSection(learning_rate=1e-3, max_steps=steps, max_seconds=None, checkpoint_steps=10 * steps)
    run.train(
        draft,
        data,
        settings,
        run.RunPlace(f"sqlite:///{folder}/mlflow.db", run_id, folder / "checkpoints", progress=False),
        run.FitOptions(compute=dtype),
    )
    ratios = [plain / trainer for plain, trainer in zip(turns.plain, turns.trainer, strict=True)][1:]
    for name, seconds in (("lightning", turns.trainer), ("plain", turns.plain)):
        print(f"{name:>10}: {1 / statistics.median(seconds[1:]):8.1f} tokens/s")
    print(f"{'ratio':>10}: {statistics.median(ratios):8.3f}  (turns {min(ratios):.3f} to {max(ratios):.3f})")


def compare_chunks(arguments: argparse.Namespace, folder: Path) -> None:
    draft, dtype = build(arguments)
    batch = next(iter(load(arguments, draft, folder).batches()))
    head = OutputHead(draft)
    states = torch.randn(len(batch.supervised), draft.config.hidden_size, dtype=dtype, requires_grad=True)
    seconds: dict[int, list[float]] = {2**exponent: [] for exponent in (20, 22, 23, 24, 25, 26, 40)}
    for _ in range(arguments.turns + 1):
        for logits, times in seconds.items():
            forward.CHUNK_LOGITS = logits
            begin = time.perf_counter()
            position_scores(states, head, batch=batch, loss="forward_kl", measure=False).loss.backward()
            times.append(time.perf_counter() - begin)
    print(f"{len(states)} positions of {head.vocab_size} logits")
    for logits, times in seconds.items():
        print(f"{logits:>14} logits alive: {1000 * statistics.median(times[1:]):8.0f} ms")


def load(arguments: argparse.Namespace, draft: PreTrainedModel, folder: Path) -> ReplayDataModule:
    buffer = ReplayBuffer(str(folder / "replay"))
    buffer.append([made_up(index, draft.config.vocab_size) for index in range(arguments.requests)])
    return ReplayDataModule(
        buffer.load(), lambda rows: everything(len(rows)), Batching(arguments.batch_tokens, 0), Selection(0.1)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=5, help="of a turn")
    parser.add_argument("--turns", type=int, default=6, help="of each, after one that does not count")
    parser.add_argument("--chunks", action="store_true")
    parsed = parser.parse_args()
    torch.set_num_threads(parsed.threads)
    lightning.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as scratch:
        (compare_chunks if parsed.chunks else compare)(parsed, Path(scratch))
