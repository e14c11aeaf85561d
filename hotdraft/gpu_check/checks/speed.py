"""The steps `speed` and `batches`: `hotdraft bench` on the device, beside transformers."""

from typing import Any

import torch

from hotdraft.gpu_check.checks.configured import write_config
from hotdraft.gpu_check.plan import CheckPlan, Found, Pair
from hotdraft.pipeline.config.settings import load_config
from hotdraft.serving.benchmark.benchmark import measure
from hotdraft.serving.benchmark.figures.table import label
from hotdraft.serving.benchmark.plan import ASSISTED, make_plan

TOKENS, TOKENS_ON_GPU = 16, 48


def one_at_a_time(plan: CheckPlan) -> Found:
    repeats = 3 if plan.on_gpu else 1
    return _measured(plan, [1], 3, repeats, ["transformers", ASSISTED])


def batches(plan: CheckPlan) -> Found:
    several = [rows for rows in plan.rows if rows > 1]
    return _measured(plan, several, max(plan.rows), 2 if plan.on_gpu else 1, ["transformers"])


def _measured(plan: CheckPlan, concurrency: list[int], prompts: int, repeats: int, against: list[str]) -> Found:
    path = write_config(plan, Pair.read(plan), "bench")
    config = load_config(path)
    bench = make_plan(
        config,
        path,
        against=against,
        concurrency=concurrency,
        traffic=None,
        prompts=prompts,
        max_tokens=TOKENS_ON_GPU if plan.on_gpu else TOKENS,
        repeats=repeats,
        threads=torch.get_num_threads(),  # which OMP_NUM_THREADS says, where it does
        fixed_k=False,
        overhead=False,
        swap=False,
    )
    report = measure(config, bench, print)
    found = Found()
    for row in report["rows"]:
        if row["shown"]:
            found.figures |= _figures(row)
    for rows, share in report["hotdraft"]["plain_bandwidth_share"].items():
        found.figures[f"{rows} at once, plain, share of the bandwidth"] = share
    for row in report["hotdraft"]["speculation"]:
        if row["k"] == "auto":
            found.figures[f"{row['concurrency']} at once, efficiency"] = row.get("engine_efficiency")
    found.wrong += [f"{name} was left out: {why}" for name, why in report["left_out"].items()]
    return found


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    name = f"{row['concurrency']} at once, {label(row)}"
    figures = {"tokens/s": row["tokens_per_second"], "over its plain": row["speed_up"]}
    if row["engine"] != "transformers":
        figures["over transformers"] = row["over_transformers"]
    told = {f"{name}, {what}": spread["median"] for what, spread in figures.items() if spread is not None}
    if row["acceptance_rate"] is not None:
        told[f"{name}, accepted"] = row["acceptance_rate"]
    equality = row["equality"]
    return {**told, f"{name}, greedy": f"{equality['equal']} of {equality['outputs']}"}
