"""A benchmark as planned, up to its report."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.serving.benchmark.equality import compare, reference_outputs
from hotdraft.serving.benchmark.figures.report import Sizes, build_report
from hotdraft.serving.benchmark.plan import BenchPlan
from hotdraft.serving.benchmark.session import run


def measure(config: HotdraftConfig, plan: BenchPlan, tell: Callable[[str], None]) -> dict[str, Any]:
    """What `plan` of `config` comes to, ready for JSON; `tell` hears what comes next.

    Raises `WorkerError` if hotdraft's own worker fails.
    """
    with TemporaryDirectory(prefix="hotdraft-bench-") as logs:
        measured = run(plan, Path(logs), tell)
    tell("comparing outputs")
    target = load_causal_lm(config.target, device=plan.settings.device)
    equalities = compare(measured.measurements, plan.prompts, reference_outputs(measured.measurements), target)
    return build_report(plan, measured, Sizes.of(config, getattr(torch, plan.settings.dtype)), equalities)
