"""Which target and proposer a decoder is made of."""

from collections.abc import Callable

from torch import Tensor
from transformers import PreTrainedModel

from hotdraft.pipeline.replay.draft_window import most_held
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.graphs.draft_chain import DraftChain
from hotdraft.serving.graphs.graphed_function import GraphedFunction
from hotdraft.serving.graphs.graphed_runner import GraphedRunner
from hotdraft.serving.graphs.graphs import Graphs
from hotdraft.serving.graphs.padding import Padding
from hotdraft.serving.graphs.recurring import Graphed
from hotdraft.serving.graphs.round_graphs import Drafting, RoundGraphs
from hotdraft.serving.models.choose import make_runners
from hotdraft.serving.models.context_length import places
from hotdraft.serving.models.slots import Slots
from hotdraft.serving.proposers.draft_model import DraftModel
from hotdraft.serving.sampling.draw import Drawn, draw
from hotdraft.serving.sampling.verify import Verified, verify


def build_decoder(
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    *,
    num_slots: int,
    max_model_len: int,
    max_k: int,
    log_top_k: int,
    max_proposed: int | None = None,
    max_alternatives: int = 0,
    draft_vocabulary: Tensor | None = None,
    draft_window: int | None = None,
    reuse_prefixes: bool = True,
    instructions: str = "auto",
    target_int8: bool = False,
    draft_int8: bool | None = None,
    graphs: Graphs | None = None,
) -> SpeculativeDecoder:
    """A decoder that takes the models over: their weights may be stored in another form.

    With `draft=None` nothing is drafted. With `draft_vocabulary` [N] the draft proposes only these token ids.
    Of a context it reads what `draft_window` lets it, see `pipeline.replay.draft_window`.
    `max_proposed` counts what is guessed too; it is `max_k` by default. Up to `max_alternatives` are read beside,
    none where there are graphs.
    For `instructions` and 8-bit weights see `Forms`. With `graphs`, recurring forwards, drawings and verifications
    become some.
    """
    models = [target] if draft is None else [target, draft]
    vocab_size = min(model.config.get_text_config().vocab_size for model in models)
    if draft is None or graphs is not None:
        max_alternatives = 0
    read = (max_proposed or max_k) + max_alternatives
    capacity = max_model_len + read + 1 + (graphs is not None)  # whose last position stays free
    slots = Slots(num_slots, capacity, target.device, reuse_prefixes=reuse_prefixes)
    draft_length = slots.key_length(most_held(max_model_len, draft_window) + capacity - max_model_len)
    runner, draft_runner, states = make_runners(
        target,
        draft,
        draft_vocabulary,
        slots,
        draft_length,
        instructions=instructions,
        target_int8=target_int8,
        draft_int8=draft_int8,
    )
    graphed: dict[str, Graphed] = {}
    verifying: Callable[..., Verified] = verify
    drawing: Callable[..., Drawn] = draw
    chain: DraftChain | None = None
    drafting: Drafting | None = None
    round_graphs: RoundGraphs | None = None
    if graphs is not None:
        padding = _padding(target, num_slots, slots.max_length)
        verifying = graphed["verifying"] = GraphedFunction(verify, graphs)
        if draft_runner is not None:
            assert draft is not None, "a draft's runner has a draft"
            of_draft = _padding(draft, num_slots, draft_length)
            chain = graphed["drafting"] = DraftChain(draft_runner, graphs, of_draft, vocab_size)
            draft_runner = graphed["draft"] = GraphedRunner(draft_runner, graphs, of_draft)
            drawing = graphed["drawing"] = GraphedFunction(draw, graphs)
            drafting = Drafting(draft_runner, chain, of_draft, max_k)
        runner = graphed["target"] = GraphedRunner(runner, graphs, padding)
        round_graphs = RoundGraphs(runner, padding, read + 1, drafting, target.device)
    proposer = None
    if draft is not None and draft_runner is not None:
        proposer = DraftModel(
            draft_runner,
            slots,
            vocab_size,
            drawing,
            chain,
            draft_window,
            draft_length,
            own_vocab_size=draft.config.get_text_config().vocab_size,
            reads_target=states is not None,
        )
    return SpeculativeDecoder(
        runner,
        proposer,
        slots,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        max_k=max_k,
        max_alternatives=max_alternatives,
        log_top_k=log_top_k,
        verify=verifying,
        graphed=graphed,
        round_graphs=round_graphs,
        states=states,
    )


def _padding(model: PreTrainedModel, num_slots: int, max_length: int) -> Padding:
    return Padding(num_slots, max_length, places(model.config.get_text_config(), max_length))
