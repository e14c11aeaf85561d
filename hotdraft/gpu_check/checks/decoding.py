"""A decoder of a check's models, and rounds of it."""

from collections.abc import Callable, Collection, Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hotdraft.gpu_check.plan import DRAFTED, CheckPlan, Found
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.graphs.graphs import Captured, CudaGraphs, Graphs
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models.attention import ATTENTION, register_attention
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling.logits import SamplingBatch

MAX_MODEL_LEN = 512
PREFILL_TOKENS = 256
GREEDY = SamplingParams(temperature=0)


class EagerGraphs:
    """In place of CUDA's on a CPU: a replay computes anew into the memory of the first results."""

    def capture(self, work: Callable[[], Sequence[torch.Tensor]]) -> Captured:
        results = [result.clone() for result in work()]

        def replay() -> None:
            for result, anew in zip(results, work(), strict=True):
                result.copy_(anew)

        return Captured(results, replay)


def graphs_of(plan: CheckPlan) -> Graphs:
    return CudaGraphs(plan.place) if plan.on_gpu else EagerGraphs()


def make_decoder(
    plan: CheckPlan, target: str, draft: str, dtype: torch.dtype, graphs: Graphs | None
) -> SpeculativeDecoder:
    """By torch's operations on a CPU too: they are what a GPU runs."""
    register_attention()
    models = [
        load_causal_lm(name, dtype=dtype, device=plan.place, attn_implementation=ATTENTION)
        for name in (target, draft)
    ]
    return build_decoder(
        *models,
        num_slots=max(plan.rows),
        max_model_len=MAX_MODEL_LEN,
        max_k=DRAFTED,
        log_top_k=8,
        reuse_prefixes=False,
        instructions="none",
        graphs=graphs,
    )


def tiny_model(device: torch.device, vocabulary: int, layers: int) -> LlamaForCausalLM:
    """Made at random, by layers another; its tokens are neither sure nor all alike."""
    register_attention()
    torch.manual_seed(2 - layers)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval().to(device)
    model.set_attn_implementation(ATTENTION)
    return model


def prompts_of(rows: int, vocabulary: int = 256) -> list[list[int]]:
    """Token ids that no two rows have alike."""
    return [[(31 * row + 7 * at + 3) % vocabulary for at in range(24)] for row in range(rows)]


def start(decoder: SpeculativeDecoder, prompts: Sequence[Sequence[int]]) -> None:
    for row, prompt in enumerate(prompts):
        decoder.load(row, prompt)
        while not decoder.prefill(row, PREFILL_TOKENS, with_proposer=True):
            pass


def answer(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Sequence[int]],
    k: int,
    tokens: int,
    params: SamplingParams = GREEDY,
) -> tuple[list[list[int]], list[int]]:
    """The first `tokens` of each row, by rounds of k drafted ones, and how many rounds each took."""
    start(decoder, prompts)
    rows = len(prompts)
    sampling = SamplingBatch.of([params] * rows, range(rows), decoder.device)
    outputs: list[list[int]] = [[] for _ in prompts]
    rounds = [0] * rows
    while min(map(len, outputs)) < tokens:
        outcome = decoder.round(ProposalPlan.uniform(rows, k), sampling, log=False)
        for row, (ids, accepted) in enumerate(zip(outcome.token_ids, outcome.num_accepted, strict=True)):
            rounds[row] += len(outputs[row]) < tokens
            outputs[row] += ids[: accepted + 1].tolist()
    return [output[:tokens] for output in outputs], rounds


def examine_graphs(decoder: SpeculativeDecoder, found: Found, unused: Collection[str] = ()) -> None:
    """Whether all that may be a graph is one, but for parts that were not used."""
    for name, part in decoder.graphed.items():
        counts = part.counts
        found.figures[f"graphs, {name}"] = counts.captured
        if counts.dropped or counts.missed or (not counts.captured and name not in unused):
            found.wrong.append(
                f"{name}: {counts.captured} graphs, {counts.dropped} dropped, {counts.missed} calls without"
            )
