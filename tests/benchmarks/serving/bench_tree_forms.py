"""What token trees of other forms would yield: tokens a round by how many tokens the target reads.

    python -m tests.benchmarks.serving.bench_tree_forms --config configs/smollm2.yaml --prompts questions.jsonl

At places of the target's own greedy answers the draft grows a tree, its likeliest tokens behind the likeliest of
each depth (EAGLE-2, Li et al., 2024), of which the likeliest are read by a target that only then says which came:
of the whole tree, of its trunk with second choices beside it, as hotdraft reads, or of the trunk alone.
"""

import argparse
import copy
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from hotdraft.pipeline.config.settings import load_config
from hotdraft.pipeline.models.layer_stack import with_cache
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.models.names import resolve
from hotdraft.serving.engine.load import draft_vocabulary
from tests.benchmarks.serving.bench_tree import encoded

READ = (2, 4, 6, 8, 12, 16, 24)
DEPTH, WIDTH = 8, 8
"""Of a tree; as many nodes of each depth go on, in as many ways."""
EVERY = 5
"""Tokens of an answer."""

Node = tuple[int, ...]
"""Its tokens from the root."""


class Draft:
    """The draft model with the head that serves."""

    def __init__(self, model: PreTrainedModel, vocabulary: Tensor | None) -> None:
        head = model.get_output_embeddings().weight.float()
        self._model = model.model
        self._tokens = torch.arange(len(head)) if vocabulary is None else vocabulary
        self._head = head[self._tokens]

    def read(self, token_ids: list[int]) -> DynamicCache:
        cache = DynamicCache()
        self._model(torch.tensor([token_ids]), **with_cache(self._model, cache))
        return cache

    def tree(self, read: DynamicCache, length: int, last: int) -> dict[Node, float]:
        """The chance of each node of a tree behind `length` tokens that were read and the `last` one."""
        chances: dict[Node, float] = {}
        growing: dict[Node, float] = {(): 1.0}
        trunk: Node = ()
        for _ in range(DEPTH):
            cache = copy.deepcopy(read)
            cache.crop(length - cache.get_seq_length())
            cache.batch_repeat_interleave(len(growing))
            paths = torch.tensor([[last, *path] for path in growing])
            states = self._model(paths, **with_cache(self._model, cache)).last_hidden_state[:, -1]
            found = (states.float() @ self._head.T).softmax(-1).topk(WIDTH)
            new = {
                (*path, token): before * chance
                for (path, before), own, columns in zip(
                    growing.items(), *(part.tolist() for part in found), strict=True
                )
                for chance, token in zip(own, self._tokens[columns].tolist(), strict=True)
            }
            chances |= new
            trunk = likeliest_behind(trunk, new)
            growing = {
                path: new[path] for path in sorted(new, key=lambda path: (path != trunk, -new[path]))[:WIDTH]
            }
        return chances


def likeliest_behind(node: Node, chances: dict[Node, float]) -> Node:
    return max((path for path in chances if path[:-1] == node), key=chances.__getitem__)


def forms(chances: dict[Node, float]) -> Iterator[tuple[str, list[Node]]]:
    """The nodes of each form, likeliest first."""
    trunk: Node = ()
    for _ in range(DEPTH):
        trunk = likeliest_behind(trunk, chances)
    order = sorted(chances, key=lambda path: (-chances[path], len(path)))
    yield "trunk", [path for path in order if trunk[: len(path)] == path]
    yield "second choices", [path for path in order if trunk[: len(path) - 1] == path[:-1]]
    yield "tree", order


@torch.inference_mode()
def main(arguments: argparse.Namespace) -> None:
    config = load_config(arguments.config)
    assert config.draft is not None, "a draft is what this is about"
    target, model = (load_causal_lm(resolve(name), dtype=torch.bfloat16) for name in (config.target, config.draft))
    draft = Draft(model, draft_vocabulary(config, target.config.vocab_size))
    prompts = [prompt for prompt in encoded(arguments, config.target) if len(prompt) < 500]
    yields: dict[tuple[str, int], list[int]] = {}
    for prompt in prompts[:: max(1, len(prompts) // arguments.requests)][: arguments.requests]:
        token_ids = torch.tensor([prompt])
        [answered] = target.generate(
            token_ids, attention_mask=torch.ones_like(token_ids), max_new_tokens=64, do_sample=False, pad_token_id=0
        ).tolist()
        read = draft.read(answered)
        for end in range(len(prompt), len(answered) - DEPTH, EVERY):
            came = {tuple(answered[end : end + depth]) for depth in range(1, DEPTH + 1)}
            for form, nodes in forms(draft.tree(read, end - 1, answered[end - 1])):
                for most in READ:
                    yields.setdefault((form, most), []).append(1 + sum(node in came for node in nodes[:most]))
    report = {form: {most: round(statistics.mean(yields[form, most]), 2) for most in READ} for form, _ in yields}
    print(f"{len(yields['tree', READ[0]])} places; tokens a round by tokens read: {READ}")
    for form, by_read in report.items():
        print(f"  {form:16}" + "".join(f"{value:6.2f}" for value in by_read.values()))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, help="JSONL; arithmetic without")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--json", type=Path)
    main(parser.parse_args())
