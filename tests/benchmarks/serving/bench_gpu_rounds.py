"""What rounds and prompts cost on a GPU, and which kernels: of a pair made at random, as tokens cost the same.

python -m tests.benchmarks.serving.bench_gpu_rounds --json rounds.json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from hotdraft.gpu_check.checks.decoding import GREEDY, EagerGraphs, prompts_of, start
from hotdraft.pipeline.system.transfer import synchronize
from hotdraft.serving.benchmark.figures.bandwidth import read_bandwidth
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.graphs.graphs import CudaGraphs
from hotdraft.serving.graphs.recurring import RECURS
from hotdraft.serving.models.attention import ATTENTION, register_attention
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling.logits import SamplingBatch

VOCABULARY = 49_152
DRAFT = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
TARGET = {"hidden_size": 2304, "intermediate_size": 26_112, "num_attention_heads": 36, "num_key_value_heads": 12}
"""SmolLM2's draft, and SmolLM2 inflated to 6 billion parameters."""
CASES = ((1, 0), (1, 4), (8, 0), (8, 4), (32, 0), (32, 4))
"""Rows and drafted tokens."""
PROMPTS = ((1, 64), (1, 256), (4, 60), (8, 30))
"""How many, and tokens of each."""
REPEATS = 15


def make(device: torch.device, layers: int, shape: dict[str, int]) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY, num_hidden_layers=layers, tie_word_embeddings=True, eos_token_id=2, **shape
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(before)
    model.set_attn_implementation(ATTENTION)
    return model


def seconds(device: torch.device, work: Callable[[], object]) -> float:
    """The median, once all is recorded."""
    times = []
    for _ in range(RECURS + 2 + REPEATS):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[-REPEATS:])


def measure_round(decoder: SpeculativeDecoder, rows: int, k: int) -> dict[str, Any]:
    prompts = prompts_of(rows)
    start(decoder, prompts)
    sampling = SamplingBatch.of([GREEDY] * rows, range(rows), decoder.device)

    def one() -> None:
        for row in range(rows):
            decoder.rewind(row, len(prompts[row]))
        decoder.round(ProposalPlan.uniform(rows, k), sampling, log=False)

    found: dict[str, Any] = {"rows": rows, "k": k, "ms": 1000 * seconds(decoder.device, one)}
    if decoder.device.type == "cuda":
        with profile(activities=[ProfilerActivity.CUDA]) as traced:
            one()
            synchronize(decoder.device)
        kernels = sorted(traced.key_averages(), key=lambda event: -event.self_device_time_total)
        found["device ms"] = sum(event.self_device_time_total for event in kernels) / 1000
        found["kernels"] = [[one.key[:80], one.count, one.self_device_time_total / 1000] for one in kernels[:12]]
    return found


def measure_prompts(decoder: SpeculativeDecoder, count: int, tokens: int) -> dict[str, Any]:
    turn = 0

    def one() -> None:
        nonlocal turn
        turn += 1
        for row in range(count):
            decoder.load(row, [(31 * turn + 7 * at + row) % 256 for at in range(tokens - row)])
        decoder.prefill_together(slice(0, count), with_proposer=True)

    return {"prompts": count, "tokens": tokens, "ms": 1000 * seconds(decoder.device, one)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=30, help="of the target")
    parser.add_argument("--small", action="store_true", help="a target of the draft's width, for a try on a CPU")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    register_attention()
    decoder = build_decoder(
        make(device, options.layers, DRAFT if options.small else TARGET),
        make(device, 4, DRAFT),
        num_slots=32,
        max_model_len=512,
        max_k=4,
        log_top_k=8,
        reuse_prefixes=False,
        instructions="none",
        graphs=CudaGraphs(device) if device.type == "cuda" else EagerGraphs(),
    )
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "layers by": str(decoder.target.runner.computation),
        "reads, GB/s": read_bandwidth(device) / 1e9,
        "rounds": [measure_round(decoder, rows, k) for rows, k in CASES],
        "prompts": [measure_prompts(decoder, count, tokens) for count, tokens in PROMPTS],
    }
    print(json.dumps(report, indent=1))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
