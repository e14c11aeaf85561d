"""How many operations a forward is: on a GPU each is a launch, and that is what a round of few tokens takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotdraft.gpu_check.checks.decoding import prompts_of, start, tiny_model
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.graphs.graphs import Captured, Graphs
from hotdraft.serving.graphs.recurring import RECURS
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models.fused_runner import FusedRunner
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.runner import Runner, Window
from hotdraft.serving.models.transformers_runner import TransformersRunner
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling.logits import SamplingBatch

ALLOCATES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}
"""Operations that compute nothing, and do not say that what they return is a view."""


class Launches(TorchDispatchMode):
    """Counts operations that compute, by name, and views and allocations not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = func._schema.returns
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in returns)
        name = func._schema.name.removeprefix("aten::")
        self.count += bool(returns) and not is_view and name not in ALLOCATES
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Forward:
    """Launches of a forward of few tokens."""

    layer: int
    outside: int
    """Embedding, mask, rotations, last norm and head."""

    def of(self, layers: int) -> int:
        return self.layer * layers + self.outside


def count(make_runner: Callable[..., Runner], device: torch.device) -> Forward:
    """Of a Llama by a kind of runner: what a second layer adds, and what is left of the first."""
    one, two = (_count_layers(make_runner, layers, device) for layers in (1, 2))
    return Forward(layer=two - one, outside=2 * one - two)


def of_both_runners(device: torch.device) -> dict[str, Forward]:
    """Before and after operations were fused: by transformers' layers, and by our own."""
    return {"transformers": count(TransformersRunner, device), "fused": count(FusedRunner, device)}


@torch.inference_mode()
def _count_layers(make_runner: Callable[..., Runner], layers: int, device: torch.device) -> int:
    model = tiny_model(device, 64, layers)
    head = ServedLinear({"head.weight": model.lm_head.weight.detach()}, None)
    runner = make_runner(model, head, 1, 64, why_not_native="launches are counted")
    window = Window(slice(0, 1), torch.zeros(1, 1, dtype=torch.int64, device=device), 64)
    token_ids = torch.zeros_like(window.positions)
    runner.forward(window, token_ids, 1)  # the first makes a cache
    with Launches() as launches:
        runner.forward(window, token_ids, 1)
    return launches.count + layers * getattr(runner, "unseen_launches", 0)


def beside_forwards(device: torch.device, params: SamplingParams, k: int, graphs: Graphs | None) -> int:
    """Launches of a round of k drafted tokens that are not its forwards', which are a graph each with `graphs`."""
    launches = Launches()
    decoder = build_decoder(
        tiny_model(device, 64, 2),
        tiny_model(device, 64, 1),
        num_slots=1,
        max_model_len=256,
        max_k=k,
        log_top_k=8,
        instructions="none",
        graphs=None if graphs is None else _Counted(graphs, launches),
    )
    start(decoder, prompts_of(1, 64))
    sampling, plan = SamplingBatch.of([params], [0], device), ProposalPlan.uniform(1, k)
    for _ in range(RECURS + 1):  # until everything is a graph
        decoder.round(plan, sampling, log=True)
    with launches:
        decoder.round(plan, sampling, log=True)
    of_forwards = k + 1
    if graphs is None:
        fused = count(FusedRunner, device)
        of_forwards = k * fused.of(1) + fused.of(2)
    return launches.count - of_forwards


class _Counted:
    """Of which a replay is one launch, whatever it takes to stand in for it."""

    def __init__(self, graphs: Graphs, launches: Launches) -> None:
        self._graphs = graphs
        self._launches = launches

    def capture(self, work: Callable[[], Sequence[torch.Tensor]]) -> Captured:
        results, replay = self._graphs.capture(work)

        def counted() -> None:
            before = self._launches.count
            replay()
            self._launches.count = before + 1

        return Captured(results, counted)
