"""The plan's memory beside what training on the CPU takes.

    python tests/benchmarks/learning/bench_plan.py [smollm2]

The draft is a cut of the model that is named, with random weights. Every case runs in a process of its own,
three steps and a checkpoint long; measured is the peak of its resident memory (Linux) beyond what it was
after a run of next to nothing. With MALLOC_MMAP_THRESHOLD_=65536 in the environment the heap keeps little of
what was freed, which the prediction leaves out.
"""

import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.packing import pack
from hotdraft.training.drafts.draft_init import check_draft, freeze_shared
from hotdraft.training.fit.lora import build_lora
from hotdraft.training.fit.module import DistillationModule
from hotdraft.training.fit.run import PRECISION
from hotdraft.training.planning.memory_plan import RUNTIME
from hotdraft.training.planning.plan_table import plan_predistill

CASES = {
    "full, bfloat16": {},
    "full, bfloat16, 4096 tokens": {"batch_tokens": 4096},
    "full, float32": {"dtype": "float32"},
    "full, bfloat16, checkpointing, 4096 tokens": {"batch_tokens": 4096, "activation_checkpointing": True},
    "lora, bfloat16, 4096 tokens": {"batch_tokens": 4096, "method": "lora"},
    "full, bfloat16, 8 layers": {"layers": 8},
}
LEAST = {"layers": 1, "feed_forward": 64, "batch_tokens": 256}
REQUEST_TOKENS = 256
TOP_K = 64


def main(target: str) -> None:
    print(f"{'case':45} predicted MB  measured MB  ratio  before MB")
    for name in CASES:
        command = [sys.executable, __file__, target, name]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        predicted, measured, before = map(float, ran.stdout.split()[-3:])
        print(
            f"{name:45} {predicted:12.0f} {measured:12.0f} {predicted / measured:6.2f} {before:11.0f}", flush=True
        )


def run_case(target: str, changes: dict) -> None:
    config = settings(target, **changes)
    plan = plan_predistill(config)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(settings(target, **changes | LEAST), plan.run.dtype, Path(folder))
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = resident("VmRSS")
        train(config, plan.run.dtype, Path(folder))
    measured = resident("VmHWM") - before
    predicted = sum(plan.training.values()) - RUNTIME["cpu"] - plan.training["recorded answers"]
    print(predicted / 1e6, measured / 1e6, before / 1e6)


def settings(target: str, *, dtype: str = "bfloat16", **predistill) -> HotdraftConfig:
    return HotdraftConfig(
        target=target, device="cpu", dtype=dtype, predistill={"layers": 4, "batch_tokens": 1024} | predistill
    )


def train(config: HotdraftConfig, dtype: torch.dtype, folder: Path) -> None:
    options = config.predistill
    model = AutoModelForCausalLM.from_config(check_draft(config.target, options), dtype=dtype)
    freeze_shared(model)
    if options.activation_checkpointing:
        model.gradient_checkpointing_enable()
    if options.method == "full":
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
    else:
        model = build_lora(model, options.lora, "none")
    trainer = lightning.Trainer(
        accelerator="cpu",
        precision=PRECISION[dtype],
        max_steps=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batches = [batch(options.batch_tokens, config) for _ in range(3)]
    module = DistillationModule(model, loss="forward_kl", learning_rate=1e-4, max_steps=3).train()
    trainer.fit(module, DataLoader(batches, batch_size=None))
    trainer.save_checkpoint(folder / "last.ckpt")


def batch(tokens: int, config: HotdraftConfig):
    vocabulary = check_draft(config.target, config.predistill).vocab_size
    return pack([request(vocabulary) for _ in range(tokens // REQUEST_TOKENS)], max_length=tokens)


def request(vocabulary: int) -> ReplaySample:
    generator = np.random.default_rng(0)
    count = REQUEST_TOKENS - 31
    return ReplaySample(
        request_id="r",
        created_at=0.0,
        domain="d",
        temperature=1.0,
        prompt_ids=generator.integers(0, vocabulary, 32, np.int32),
        output_ids=generator.integers(0, vocabulary, count, np.int32),
        target_top_ids=np.stack([generator.permutation(vocabulary)[:TOP_K] for _ in range(count)]).astype(np.int32),
        target_top_logprobs=np.full((count, TOP_K), np.log(0.9 / TOP_K), np.float16),
        target_tail_logprob=np.full(count, np.log(0.1), np.float32),
        drafted_ids=np.full(count, -1, np.int32),
        accepted=np.zeros(count, bool),
        draft_versions=np.zeros(count, np.int32),
    )


def resident(name: str) -> int:
    """`VmRSS` now, or its peak `VmHWM`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run_case(sys.argv[1], CASES[sys.argv[2]])
    else:
        main(*(sys.argv[1:] or ["smollm2"]))
