"""Choosing how the two models are run, and what they share."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hotdraft.pipeline.models.hidden_state_draft import HiddenStateConfig
from hotdraft.pipeline.models.names import ModelError
from hotdraft.serving.models.attention import check_supported
from hotdraft.serving.models.forms import Form, Forms
from hotdraft.serving.models.hidden_states.target_states import TargetStates
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.runner import Runner
from hotdraft.serving.models.slots import Slots
from hotdraft.serving.models.trimmed_head import TrimmedHead
from hotdraft.serving.native.linear import NativeLinear


def make_runners(
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    draft_vocabulary: Tensor | None,
    slots: Slots,
    draft_length: int | None = None,
    *,
    instructions: str = "auto",
    target_int8: bool = False,
    draft_int8: bool | None = None,
) -> tuple[Runner, Runner | None, TargetStates | None]:
    """Runners of the target and, if there is one, the draft, whose head is trimmed to `draft_vocabulary` [N].

    And what the draft reads of the target, if it reads any. The draft's slots hold `draft_length` tokens if given,
    and it has one more of them, for probes.
    What the two have in common, embedding and head, is kept once. For `instructions` and 8-bit weights see `Forms`.
    Raises `ModelError` for attention or a head that is not supported, and for 8-bit weights where there are none.
    """
    num_slots, max_length = slots.num_slots, slots.max_length
    draft_length = draft_length or max_length
    check_supported(target.config.get_text_config(), max_length)
    if draft is not None:
        check_supported(draft.config.get_text_config(), draft_length)
    for parameter in target.get_input_embeddings().parameters():
        parameter.data = parameter.data.clone()  # as a view it would keep the whole mapped file
    forms = Forms(instructions)
    target_form, target_output = forms.of_target(target, int8=target_int8), _output(target)
    target_head = _head(target_form, target_output)
    runner = target_form.runner(target, target_head, num_slots, max_length)
    if draft is None:
        return runner, None, None
    if _equal(draft.get_input_embeddings(), target.get_input_embeddings()):
        draft.set_input_embeddings(target.get_input_embeddings())
    draft_form, output = forms.of_draft(draft, int8=draft_int8), _output(draft)
    shared = _equal(output, target_output)
    head: nn.Module = target_head
    if draft_vocabulary is not None:
        head = TrimmedHead(target_output if shared else output, draft_vocabulary, draft_form.linear)
    elif not shared or draft_form != target_form:
        head = _head(draft_form, output)
    states = None
    if isinstance(draft.config, HiddenStateConfig):
        states = TargetStates(draft.config, slots)
        runner.record_states(states)
    return runner, draft_form.runner(draft, head, num_slots + 1, draft_length, states), states


def _output(model: PreTrainedModel) -> nn.Linear:
    output = model.get_output_embeddings()
    if type(output) is not nn.Linear:  # one of another kind multiplies in its own way
        raise ModelError(f"an output head that is a {type(output).__name__} is not supported")
    return output


def _head(form: Form, output: nn.Linear) -> ServedLinear | NativeLinear:
    bias = None if output.bias is None else output.bias.detach()
    return form.linear({"head.weight": output.weight.detach()}, bias)


def _equal(module: nn.Module, other: nn.Module) -> bool:
    first, second = list(module.parameters()), list(other.parameters())
    return len(first) == len(second) and all(map(torch.equal, first, second))
