"""The step `swaps`: adapters come and go, tokens stay, and a stream hardly notices."""

from pathlib import Path

import torch

from hotdraft.gpu_check.checks.configured import conversations, write_config
from hotdraft.gpu_check.plan import DRAFTED, CheckPlan, Found, Pair
from hotdraft.llm import LLM
from hotdraft.pipeline.models.loading import choose_dtype
from hotdraft.serving.benchmark.engines.engine import EngineSettings
from hotdraft.serving.benchmark.engines.hotdraft_engine import HotdraftEngine
from hotdraft.serving.benchmark.random_adapter import write_random_adapter
from hotdraft.serving.messages.request import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)


def check(plan: CheckPlan) -> Found:
    pair, found = Pair.read(plan), Found()
    _check_tokens(plan, pair, found)
    _measure_gap(plan, pair, found)
    return found


def _check_tokens(plan: CheckPlan, pair: Pair, found: Found) -> None:
    """In float32, where nothing but a fault changes a token."""
    adapter = plan.folder / "adapter"
    write_random_adapter(adapter, pair.draft, rank=8, dtype=torch.float32, seed=0, scale=3e-2)
    with LLM(pair.small, pair.draft, dtype="float32", device=plan.device, k=DRAFTED, instructions="none") as llm:
        answers = {"before": llm.chat(conversations(8), GREEDY)}
        llm.swap(adapter)
        answers["with an adapter"] = llm.chat(conversations(8), GREEDY)
        llm.swap(None)
        answers["after"] = llm.chat(conversations(8), GREEDY)
    tokens = {name: [one.outputs[0].token_ids for one in given] for name, given in answers.items()}
    accepted = {name: [one.acceptance_rate for one in given] for name, given in answers.items()}
    for name in ("with an adapter", "after"):
        same = sum(map(list.__eq__, map(list, tokens[name]), map(list, tokens["before"])))
        found.figures[f"answers {name}"] = f"{same} of 8 as before"
        if same < 8:
            found.wrong.append(f"{8 - same} of 8 greedy answers are others {name}")
    if accepted["after"] != accepted["before"]:
        found.wrong.append("what is accepted is not what it was before, once the adapter is gone")
    if accepted["with an adapter"] == accepted["before"]:
        found.wrong.append("the adapter changes nothing of what is accepted: it is not in use")


def _measure_gap(plan: CheckPlan, pair: Pair, found: Found) -> None:
    settings = EngineSettings(
        Path(pair.target),
        Path(pair.draft),
        dtype=str(choose_dtype("auto", plan.place)).removeprefix("torch."),
        threads=torch.get_num_threads(),
        cache_folder=plan.folder,
        config_file=write_config(plan, pair, "swaps"),
        device=plan.device,
    )
    swap = HotdraftEngine(settings).measure("swap", 1)
    found.figures |= {
        f"{name.removesuffix('_seconds').replace('_', ' ')}, ms": 1000 * seconds
        for name, seconds in swap.items()
        if name.endswith("_seconds")
    }
    found.figures["worst stall over the median gap"] = swap["worst_stall_seconds"] / swap["median_gap_seconds"]
