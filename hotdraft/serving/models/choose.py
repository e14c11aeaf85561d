"""Choosing how the two models are run."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hotdraft.serving.models.attention import check_supported
from hotdraft.serving.models.fused_runner import FusedRunner, is_fusable
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.runner import Runner
from hotdraft.serving.models.transformers_runner import TransformersRunner
from hotdraft.serving.models.trimmed_head import TrimmedHead


def make_runners(
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    draft_vocabulary: Tensor | None,
    num_slots: int,
    max_length: int,
) -> tuple[Runner, Runner | None]:
    """Runners of the target and, if there is one, the draft, whose head is trimmed to `draft_vocabulary` [N].

    The draft has one slot more than `num_slots`, for probes. What the two have in common, embedding and
    head, is kept once. Raises `ModelError` for attention that is not supported.
    """
    for model in [target] if draft is None else [target, draft]:
        check_supported(model.config.get_text_config(), max_length)
    for parameter in target.get_input_embeddings().parameters():
        parameter.data = parameter.data.clone()  # as a view it would keep the whole mapped file
    target_output = target.get_output_embeddings()
    target_head = ServedLinear.of({"head": target_output})
    draft_head: nn.Module = target_head
    if draft is not None:
        if _equal(draft.get_input_embeddings(), target.get_input_embeddings()):
            draft.set_input_embeddings(target.get_input_embeddings())
        output = draft.get_output_embeddings()
        shared = _equal(output, target_output)
        if draft_vocabulary is not None:
            draft_head = TrimmedHead(target_output if shared else output, draft_vocabulary)
        elif not shared:
            draft_head = ServedLinear.of({"head": output})
    runner = _runner(target, target_head, num_slots, max_length)
    return runner, None if draft is None else _runner(draft, draft_head, num_slots + 1, max_length)


def _runner(model: PreTrainedModel, head: nn.Module, num_slots: int, max_length: int) -> Runner:
    kind = FusedRunner if is_fusable(model) else TransformersRunner
    return kind(model, head, num_slots, max_length)


def _equal(module: nn.Module, other: nn.Module) -> bool:
    first, second = list(module.parameters()), list(other.parameters())
    return len(first) == len(second) and all(map(torch.equal, first, second))
