"""The report of a benchmark, ready for JSON."""

import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from transformers import AutoConfig

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.inflate import INFLATED_FROM
from hotdraft.pipeline.replay.draft_window import most_held
from hotdraft.pipeline.system.resources import cpu_name
from hotdraft.serving.benchmark.engines.engine import PLAIN, EngineSettings, Mode
from hotdraft.serving.benchmark.engines.weights import (
    bytes_per_step,
    embedding_bytes,
    kv_bytes_per_token,
    stored_bytes,
)
from hotdraft.serving.benchmark.equality import Equality
from hotdraft.serving.benchmark.figures.summary import Row, best_rows, paired, select, summarise
from hotdraft.serving.benchmark.figures.theory import (
    RoundFigures,
    bandwidth_share,
    engine_efficiency,
    predicted_speed_up,
)
from hotdraft.serving.benchmark.plan import OURS, BenchPlan
from hotdraft.serving.benchmark.session import Measured

AUTO = Mode("speculative", "auto")
RECORDED = Mode("speculative", "auto", recording=True)


@dataclass(frozen=True)
class Sizes:
    """Bytes of the pair as it is measured."""

    weights: int
    """Target and draft, what they share once. Of a target in 8 bits tokens are looked up in the dtype still."""
    step: int
    """What a plain step reads."""
    kv_slot: int
    """Keys and values of one slot at its full length, in both models, of what each reads."""

    @classmethod
    def of(cls, config: HotdraftConfig, dtype: torch.dtype) -> Self:
        rounded = config.engine.target_weights == "int8"
        step = bytes_per_step(config.target, torch.int8 if rounded else dtype)
        step = step * 17 // 16 if rounded else step  # 64 weights have a scale of 4 bytes
        target = step + embedding_bytes(config.target, dtype) if rounded else stored_bytes(config.target, dtype)
        held = [(config.target, config.engine.max_model_len)]
        if config.draft is not None:
            held.append((config.draft, most_held(config.engine.max_model_len, config.engine.draft_window)))
        return cls(
            weights=target + sum(stored_bytes(name, dtype) for name, _ in held[1:]),
            step=step,
            kv_slot=sum(length * kv_bytes_per_token(name, dtype) for name, length in held),
        )


def build_report(
    plan: BenchPlan, measured: Measured, sizes: Sizes, equalities: Sequence[Equality]
) -> dict[str, Any]:
    """Everything that was measured, computed and known about the run. Tokens' times are left out."""
    rows = summarise(measured.measurements)
    best = best_rows(rows)
    equality = {(item.engine, item.mode, item.concurrency): item for item in equalities}
    shares = plain_shares(measured, sizes.step)
    return {
        "environment": environment(plan),
        "versions": measured.versions,
        "left_out": measured.left_out,
        "rows": [
            {
                **asdict(row),
                "shown": row in best,
                "tokens_per_second_by_repeat": [
                    item.tokens_per_second
                    for item in select(measured.measurements, row.engine, row.mode, row.concurrency).values()
                ],
                "equality": _equality(equality[row.engine, row.mode, row.concurrency]),
            }
            for row in rows
        ],
        "hotdraft": {
            "bandwidth_gb_per_second": float(np.median([*chain(*measured.bandwidths.values())])) / 1e9,
            "plain_bandwidth_share": {rows: float(np.median(told)) for rows, told in shares.items()},
            "plain_bandwidth_share_by_repeat": shares,
            "speculation": [
                {"k": row.mode.k, "concurrency": row.concurrency, **theory(row, measured.costs[row.concurrency])}
                for row in rows
                if row.engine == OURS and row.mode.kind == "speculative" and not row.mode.recording
            ],
            "memory_beyond_weights_and_kv_mb": memory_beyond(plan, measured, sizes),
            "recording_overhead_percent": overhead(plan, measured),
            "swap": measured.swap,
        },
    }


def environment(plan: BenchPlan) -> dict[str, Any]:
    """Where and how this was measured."""
    settings = plan.settings
    return {
        "command": " ".join(["hotdraft", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "gpu": None if settings.device == "cpu" else torch.cuda.get_device_name(settings.device),
        "threads": settings.threads,
        "dtype": settings.dtype,
        "inflated": inflated_models(settings),
        "python": platform.python_version(),
        "torch": version("torch"),
        "prompts": len(plan.prompts),
        "prompt_tokens": sum(map(len, plan.prompts)),
        "max_tokens": plan.max_tokens,
        "repeats": plan.repeats,
        "concurrency": list(settings.concurrency),
    }


def inflated_models(settings: EngineSettings) -> dict[str, str]:
    """Of target and draft those that only cost what their size does → the small model whose answers they give."""
    folders = {"target": settings.target_folder, "draft": settings.draft_folder}
    configs = {role: AutoConfig.from_pretrained(folder) for role, folder in folders.items() if folder is not None}
    return {
        role: getattr(config, INFLATED_FROM) for role, config in configs.items() if hasattr(config, INFLATED_FROM)
    }


def theory(row: Row, costs: Sequence[dict[str, float]]) -> dict[str, float | None]:
    """Costs and the speed-up they let a row hope for. Costs are medians over the repeats."""
    plain, step = (
        float(np.median([cost[name] for cost in costs])) for name in ("round_seconds_k0", "draft_step_seconds")
    )
    length, drafted = row.mean_acceptance_length, row.drafted_per_round
    if length is None or drafted is None or row.decode_speed_up is None:
        return {"plain_round_ms": 1000 * plain, "draft_step_ms": 1000 * step}
    figures = RoundFigures(plain, step, drafted, length)
    return {
        "plain_round_ms": 1000 * plain,
        "draft_step_ms": 1000 * step,
        "cost_ratio": figures.cost_ratio,
        "drafted_per_round": drafted,
        "mean_acceptance_length": length,
        "predicted_speed_up": predicted_speed_up(figures),
        "decode_speed_up": row.decode_speed_up.median,
        "engine_efficiency": engine_efficiency(row.decode_speed_up.median, figures),
    }


def plain_shares(measured: Measured, step_bytes: int) -> dict[str, list[float]]:
    """Concurrency → share of the memory bandwidth that our plain decoding reached, by repeat.

    Where tokens came one by one: a text may come whole, as of tokens that are no characters.
    """
    shares = {}
    for concurrency, limits in measured.bandwidths.items():
        repeats = select(measured.measurements, OURS, PLAIN, concurrency).values()
        limited = zip((item.decode_seconds_per_token for item in repeats), limits, strict=True)
        if told := [bandwidth_share(seconds, step_bytes, limit) for seconds, limit in limited if seconds]:
            shares[str(concurrency)] = told
    return shares


def memory_beyond(plan: BenchPlan, measured: Measured, sizes: Sizes) -> float | None:
    """MB after loading and running, less imports, weights, and the slots of keys and values; None on a GPU."""
    if plan.settings.device != "cpu":
        return None
    assert measured.memory is not None, "hotdraft has run"
    known = (sizes.weights + max(plan.settings.concurrency) * sizes.kv_slot) / 1e6
    return measured.memory.now - measured.imported_mb - known


def overhead(plan: BenchPlan, measured: Measured) -> dict[str, Any] | None:
    """Concurrency → what recorder and metrics cost, in percent of tokens/s; None if it was not measured."""
    if not plan.settings.recording:
        return None
    found = {}
    for concurrency in plan.settings.concurrency:
        on, off = (select(measured.measurements, OURS, mode, concurrency) for mode in (RECORDED, AUTO))
        ratio = paired(on, off)
        if ratio is not None:
            cost = {"median": ratio.median, "low": ratio.high, "high": ratio.low}
            found[str(concurrency)] = {name: 100 * (1 - value) for name, value in cost.items()}
    return found


def _equality(equality: Equality) -> dict[str, Any]:
    margins = equality.margins
    return {
        "equal": equality.equal,
        "outputs": equality.outputs,
        "largest_divergence_margin": max(margins, default=None),
        "divergence_margins": margins,
    }
