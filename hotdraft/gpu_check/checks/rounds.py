"""The step `rounds`: graphs change no token; what rounds cost with and without, and what they cost at least."""

import time

import torch

from hotdraft.gpu_check.checks.decoding import (
    GREEDY,
    answer,
    examine_graphs,
    graphs_of,
    make_decoder,
    prompts_of,
)
from hotdraft.gpu_check.checks.launches import Forward, beside_forwards, of_both_runners
from hotdraft.gpu_check.checks.machine import launch_seconds
from hotdraft.gpu_check.checks.prediction import Device, Size, forward_seconds, round_seconds
from hotdraft.gpu_check.plan import DRAFTED, CheckPlan, Found, Pair
from hotdraft.pipeline.models.loading import choose_dtype, load_config_of
from hotdraft.serving.benchmark.engines.weights import bytes_per_step
from hotdraft.serving.benchmark.figures.bandwidth import read_bandwidth
from hotdraft.serving.benchmark.figures.theory import bandwidth_share
from hotdraft.serving.decoding.costs import profile_costs
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.messages.request import SamplingParams

TOKENS = 64
WAYS = {"greedy": GREEDY, "drawn": SamplingParams(temperature=0.8, top_p=0.9, seed=7)}


def check(plan: CheckPlan) -> Found:
    pair, dtype = Pair.read(plan), choose_dtype("auto", plan.place)
    bandwidth = read_bandwidth(plan.place)
    forwards = of_both_runners(plan.place)
    found = Found({f"launches a layer, {name}": forward.layer for name, forward in forwards.items()})
    device = Device(launch_seconds(plan.place), bandwidth)
    for how, graphs in (("eager", None), ("graphs", graphs_of(plan))):
        beside = beside_forwards(plan.place, WAYS["drawn"], DRAFTED, graphs)
        found.figures[f"launches of a drawn round beside its forwards, {how}"] = beside
        found.figures |= _predicted(pair, dtype, forwards["fused"], beside, device, how)
    eager_tokens = _play(plan, pair, dtype, "eager", found)[0]  # and its decoder is gone
    graphed_tokens, decoder = _play(plan, pair, dtype, "graphs", found)
    for (way, rows), tokens in eager_tokens.items():
        same = sum(one == other for one, other in zip(tokens, graphed_tokens[way, rows], strict=True))
        found.figures[f"{rows} at once, {way}, same with graphs"] = f"{same} of {rows}"
        if same < rows and dtype == torch.float32:
            found.wrong.append(f"{rows} at once, {way}: {rows - same} answers are others with graphs")
    examine_graphs(decoder, found)
    found.figures |= {
        f"{rows} at once, plain, share of the bandwidth": bandwidth_share(
            found.figures[f"{rows} at once, plain round with graphs, ms"] / 1000,
            bytes_per_step(pair.target, dtype),
            bandwidth,
        )
        for rows in plan.rows
    }
    return found


def _play(
    plan: CheckPlan, pair: Pair, dtype: torch.dtype, how: str, found: Found
) -> tuple[dict[tuple[str, int], list[list[int]]], SpeculativeDecoder]:
    """Answers by way and rows, and the decoder; costs are put into `found`."""
    decoder = make_decoder(plan, pair.target, pair.draft, dtype, graphs_of(plan) if how == "graphs" else None)
    began = time.perf_counter()
    tokens = {
        (way, rows): answer(decoder, prompts_of(rows), DRAFTED, TOKENS, params)[0]
        for way, params in WAYS.items()
        for rows in plan.rows
    }
    found.figures[f"answers, {how}, s"] = time.perf_counter() - began
    costs = profile_costs(decoder, plan.rows, DRAFTED)
    for rows in plan.rows:
        name = f"{rows} at once"
        found.figures |= {
            f"{name}, plain round with {how}, ms": 1000 * costs.round_seconds(rows, 0),
            f"{name}, draft step with {how}, ms": 1000 * costs.draft_step_seconds(rows),
            f"{name}, round of {DRAFTED} with {how}, ms": 1000 * costs.round_seconds(rows, DRAFTED),
        }
    return tokens, decoder


def _predicted(
    pair: Pair, dtype: torch.dtype, forward: Forward, beside: int, device: Device, how: str
) -> dict[str, float]:
    target, draft = _size(pair.target, dtype), _size(pair.draft, dtype)
    plain = forward_seconds(forward, target, device, graph=how == "graphs")
    whole = round_seconds(forward, target, draft, DRAFTED, beside, device, graph=how == "graphs")
    return {
        f"predicted plain forward with {how}, ms": 1000 * plain,
        f"predicted drawn round of {DRAFTED} with {how}, ms": 1000 * whole,
    }


def _size(name: str, dtype: torch.dtype) -> Size:
    config = load_config_of(name).get_text_config()
    return Size(config.num_hidden_layers, bytes_per_step(name, dtype))
