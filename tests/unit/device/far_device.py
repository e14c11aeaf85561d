"""A device that can be waited for no more than once a round: rounds run on it without there being one.

Its tensors are fake: they have shapes and a place and no values. So whatever asks for a value fails, and what has a
shape that depends on values, or tensors in two places. What crosses between host and device is noted.

    python -m tests.unit.device.far_device      # a line of JSON: by case what went wrong, or null

It is a program of its own, as a backend is there for a whole process.
"""

import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hotdraft.pipeline.config.learning import LoraSection
from hotdraft.pipeline.models.hidden_state_draft import HiddenStateConfig, HiddenStateDraft
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.serving.decoding import decoder
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models import attention, choose, slots
from hotdraft.serving.proposers import draft_model, plan
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling import alternatives, logits, verify
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.training.batches.packing import pack
from hotdraft.training.fit.lora import build_lora
from hotdraft.training.scoring import kept_prompts
from hotdraft.training.scoring.forward import DraftForward
from hotdraft.training.scoring.kept_prompts import KeptPrompts
from hotdraft.training.scoring.position_scores import position_scores
from tests.models import tiny_llama, tiny_neox

DEVICE = torch.device("privateuseone", 0)


class _Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class _Fakes(FakeTensorMode):
    avoid_device_init = True  # type: ignore[assignment]
    host_remembers = False
    """Whether what the host made of a list it may read again."""

    def may_turn_const(self, tensor: Tensor) -> bool:
        return self.host_remembers and tensor.numel() > 0 and super().may_turn_const(tensor)


@dataclass
class Crossings(TorchDispatchMode):
    """Notes what goes from one device to the other by itself, that is without `transfer`."""

    noted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        places = [
            {leaf.device.type for leaf in tree_leaves(some) if isinstance(leaf, Tensor) and leaf.numel()}
            for some in (args, result)
        ]
        if all(places) and places[0] != places[1]:
            self.noted.append(
                f"{func}: {places[0]} to {places[1]}\n{''.join(traceback.format_stack(limit=12)[:-1])}"
            )
        return result


def sent(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """As `transfer.sent`, of which a process without a real device cannot pin the memory."""
    return torch.empty(np.shape(values), dtype=dtype, device=device)


@contextmanager
def far_device() -> Iterator[Callable[[], int]]:
    """Within it `DEVICE` is there; gives how often the host has waited for it so far."""

    waits = 0

    def received(tensor: Tensor) -> np.ndarray:
        nonlocal waits
        waits += 1
        columns = np.zeros(tuple(tensor.shape), {torch.int32: np.int32}[tensor.dtype])
        columns[:, :2] = 1  # both models' logits were sound, and nothing was accepted
        return columns

    decoder.received = received
    kept_prompts.moved = lambda tensor, device: torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    choose._equal = lambda *_: False  # loading may look at weights
    for module in (slots, draft_model, plan, logits, alternatives):
        module.sent = sent
    backend_registration._setup_privateuseone_for_python_backend("far", _Backend())  # unnamed it has no gradients
    fake_tensor.CONSTANT_NUMEL_LIMIT = 64
    with _Fakes(allow_non_fake_inputs=True):
        yield lambda: waits


def noted_nothing(crossings: Crossings) -> None:
    if crossings.noted:
        raise AssertionError(crossings.noted[0])


@cache
def begun(kind: str, proposing: str) -> SpeculativeDecoder:
    """A decoder that has read two requests."""
    with DEVICE:
        make = {"llama": tiny_llama, "neox": tiny_neox}[kind]
        target, draft = make(2, 1), make(1, 2)
        if "states" in proposing:
            draft = HiddenStateDraft(HiddenStateConfig.beside(target.config, [1, 2]))
        vocabulary = torch.arange(64) if "trimmed" in proposing else None
    for model in (target, draft):
        model.set_attn_implementation("hotdraft")
    sizes = {"num_slots": 3, "max_model_len": 256, "max_k": 3, "log_top_k": 8, "max_proposed": 8}
    decoder = build_decoder(target, draft, draft_vocabulary=vocabulary, **sizes)
    read(decoder, 2)  # transformers makes a cache at its first forward
    with Crossings() as crossings:
        for row in range(2):
            read(decoder, row)
        decoder.move(1, 2)
    noted_nothing(crossings)
    return decoder


def a_round(kind: str, proposing: str, params: dict[str, Any], *, log: bool, waits: Callable[[], int]) -> None:
    """One more of a decoder that all cases of its kind go on with."""
    decoder = begun(kind, proposing)
    plan = {
        "plain": ProposalPlan.uniform(2, 0),
        "text": ProposalPlan([(5, 6, 7, 8), ()], [0, 0]),
        "text and draft": ProposalPlan([(5, 6), ()], [1, 3]),
        "text and states": ProposalPlan([(5, 6), ()], [1, 3]),
        "alternatives": ProposalPlan([(5,), ()], [1, 2], alternatives=[2, 1]),
    }.get(proposing, ProposalPlan.uniform(2, 3))
    before = waits()
    with Crossings() as crossings:
        some = SamplingParams(**params)
        sampling = SamplingBatch.of([some, SamplingParams(temperature=0)], [1, 2], DEVICE)
        decoder.round(plan, sampling, log=log)
    noted_nothing(crossings)
    assert waits() - before == 1, f"the host waited {waits() - before} times in a round"


def training_steps(batch: Any, *, kept: bool, fault: Callable[[Tensor], object] = lambda loss: None) -> None:
    """Two of them: loss, gradient, optimiser; the second finds prompts that are kept."""

    with unset_fake_temporarily():  # PEFT moves what it makes, which fakes cannot be
        model = build_lora(tiny_llama(1, 2), LoraSection(rank=4, alpha=8), "none").train()
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                there = torch.empty(parameter.shape, device=DEVICE)
                module._parameters[name] = nn.Parameter(there, parameter.requires_grad)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else torch.empty(buffer.shape, device=DEVICE)
    vocabulary = torch.arange(64, device=DEVICE)
    there = {name: part for name, part in batch._asdict().items() if isinstance(part, Tensor)}
    batch = batch._replace(**{name: torch.empty_like(part, device=DEVICE) for name, part in there.items()})
    draft = DraftForward(model, vocabulary, KeptPrompts(60) if kept else None)
    optimizer = torch.optim.AdamW([part for part in model.parameters() if part.requires_grad])
    read = partial(position_scores, batch=batch, loss="forward_kl", measure=True)
    _Fakes.host_remembers = True
    try:
        # autograd's own threads know nothing of fakes
        with Crossings() as crossings, torch.autograd.set_multithreading_enabled(False):
            for _ in range(2):
                loss = draft(batch, read)[0].loss.sum()
                fault(loss.view(1, 1))
                loss.backward()
                nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
                optimizer.step()
                optimizer.zero_grad()
    finally:
        _Fakes.host_remembers = False
    noted_nothing(crossings)


def sample(prompt: int, answer: int) -> ReplaySample:
    """A greedy request of so many tokens."""
    return ReplaySample(
        request_id=f"{prompt}",
        created_at=0.0,
        domain="any",
        temperature=0.0,
        prompt_ids=np.arange(prompt, dtype=np.int32),
        output_ids=np.arange(answer, dtype=np.int32),
        target_top_ids=np.zeros((answer, 4), np.int32),
        target_top_logprobs=np.zeros((answer, 4), np.float16),
        target_tail_logprob=np.zeros(answer, np.float32),
        drafted_ids=np.zeros(answer, np.int32),
        accepted=np.zeros(answer, bool),
        draft_versions=np.zeros(answer, np.int32),
    )


def read(decoder: Any, row: int) -> None:
    decoder.load(row, list(range(20 + row)))
    while not decoder.prefill(row, 16, with_proposer=True):
        pass


SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "top_k, min_p": {"temperature": 1.0, "top_k": 20, "min_p": 0.05},
    "eta": {"temperature": 1.0, "eta_cutoff": 0.001},
    "seed": {"temperature": 0.8, "seed": 7},
    "seed, top_p": {"temperature": 0.8, "seed": 7, "top_p": 0.9},
    "penalties": {"temperature": 0.8, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "bias": {"temperature": 0.8, "logit_bias": ((3, 1.5), (9, -100.0))},
    "logprobs": {"temperature": 0.8, "logprobs": 3},
}
PROPOSING = (
    "plain",
    "draft",
    "trimmed draft",
    "text",
    "text and draft",
    "alternatives",
    "states",
    "text and states",
)
ROUNDS = {
    f"{kind}, {proposing}, {how}{', recorded' * log}": (kind, proposing, params, log)
    for kind, proposing, (how, params), log in product(
        ("llama", "neox"), PROPOSING, SAMPLING.items(), (False, True)
    )
}
PLANTED = {
    "a list is copied": lambda logits: torch.tensor([0.5], device="cpu").to(logits.device),
    "a value is asked for": lambda logits: logits.amax().item(),
    "a shape depends on values": lambda logits: logits.nonzero(),
    "two places": lambda logits: logits + torch.ones_like(logits, device="cpu"),
    "a copy to the host": lambda logits: logits[0].cpu(),
}
"""Faults of which each must be found: in `are_sound`, which every round comes through, and with a loss."""


def cases(waits: Callable[[], int], batch: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    for name, (kind, proposing, params, log) in ROUNDS.items():
        yield name, partial(a_round, kind, proposing, params, log=log, waits=waits)
    for kept in (False, True):
        yield f"training{', prompts kept' * kept}", partial(training_steps, batch, kept=kept)
    for name, fault in PLANTED.items():
        yield f"planted: {name}", partial(with_fault, fault, waits)
        yield f"planted in training: {name}", partial(training_steps, batch, kept=False, fault=fault)


def with_fault(fault: Callable[[Tensor], object], waits: Callable[[], int]) -> None:
    are_sound = verify.are_sound

    def faulty(logits: Tensor) -> Tensor:
        fault(logits)
        return are_sound(logits)

    verify.are_sound = faulty
    try:
        a_round("llama", "draft", SAMPLING["greedy"], log=False, waits=waits)
    finally:
        verify.are_sound = are_sound


def main() -> None:
    attention.register_attention()
    batch = pack([sample(9, 5), sample(12, 7)])
    found: dict[str, str | None] = {}
    with far_device() as waits:
        for name, case in cases(waits, batch):
            try:
                case()
                found[name] = None
            except Exception:  # noqa: BLE001 -- whatever it is, it is this case's
                found[name] = traceback.format_exc(limit=-6)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
