"""Whether outputs are the greedy ones, and if not, how close the call was where they part."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from hotdraft.serving.benchmark.engines.engine import PLAIN, Mode
from hotdraft.serving.benchmark.figures.summary import Measurement

REFERENCES = ("transformers", "hotdraft")


@dataclass(frozen=True)
class Divergence:
    """Where an output parts from the reference: `context` is common to both, then the tokens differ."""

    context: tuple[int, ...]
    token: int
    reference_token: int


@dataclass(frozen=True)
class Equality:
    """Of one engine in one mode at one concurrency, over all repeats."""

    engine: str
    mode: Mode
    concurrency: int
    outputs: int
    equal: int
    margins: list[float]
    """Of each unequal output, see `margin`."""


def first_divergence(prompt: Sequence[int], output: Sequence[int], reference: Sequence[int]) -> Divergence | None:
    """None if the outputs, of one length, are equal."""
    for position, (token, expected) in enumerate(zip(output, reference, strict=True)):
        if token != expected:
            return Divergence((*prompt, *reference[:position]), token, expected)
    return None


@torch.inference_mode()
def margin(target: PreTrainedModel, divergence: Divergence) -> float:
    """The highest logit less the lower one of the two tokens, teacher-forced on the common context.

    It is the margin between the top two if they are those two, and larger if either is another token.
    """
    ids = torch.tensor([divergence.context], device=target.device)
    logits = target(input_ids=ids, logits_to_keep=1).logits[0, -1].float()
    return float(logits.max() - torch.minimum(logits[divergence.token], logits[divergence.reference_token]))


def reference_outputs(measurements: Sequence[Measurement]) -> list[list[int]]:
    """The first plain outputs of transformers at its lowest concurrency, or hotdraft's if it did not run."""
    plain = [item for item in measurements if item.mode == PLAIN and item.engine in REFERENCES]
    first = min(plain, key=lambda item: (REFERENCES.index(item.engine), item.concurrency, item.repeat))
    return first.result.outputs


def compare(
    measurements: Sequence[Measurement],
    prompts: Sequence[list[int]],
    reference: Sequence[list[int]],
    target: PreTrainedModel,
) -> list[Equality]:
    """Hold the outputs of every engine against `reference`. Each `target` forward is done once."""
    known: dict[Divergence, float] = {}
    keys = dict.fromkeys((item.engine, item.mode, item.concurrency) for item in measurements)
    compared = []
    for key in keys:
        margins = []
        outputs = 0
        for item in measurements:
            if (item.engine, item.mode, item.concurrency) != key:
                continue
            for prompt, output, expected in zip(prompts, item.result.outputs, reference, strict=True):
                outputs += 1
                divergence = first_divergence(prompt, output, expected)
                if divergence is not None:
                    if divergence not in known:
                        known[divergence] = margin(target, divergence)
                    margins.append(known[divergence])
        compared.append(Equality(*key, outputs=outputs, equal=outputs - len(margins), margins=margins))
    return compared
