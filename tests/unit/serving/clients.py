"""Talking to an engine without HTTP, and what it should answer."""

import threading
from functools import cache

import torch

from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.messages.request import GenerationRequest, OutputDelta, SamplingParams


class Client:
    """Collects what a request hears."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.deltas: list[OutputDelta] = []
        self.first = threading.Event()
        self.done = threading.Event()

    def __call__(self, delta: OutputDelta) -> None:
        self.deltas.append(delta)
        self.text += delta.text
        self.ids += delta.token_ids
        self.first.set()
        if delta.finish_reason:
            self.done.set()

    def wait(self) -> OutputDelta:
        assert self.done.wait(60)
        return self.deltas[-1]


def request(name: str, prompt: tuple[int, ...] = (1, 2, 3), **params: object) -> GenerationRequest:
    values = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True, **params}
    return GenerationRequest(name, prompt, SamplingParams(**values))


def ask(engine: Engine, wanted: GenerationRequest) -> Client:
    client = Client()
    engine.submit(wanted, client)
    return client


@cache
def greedy(target: str, prompt: tuple[int, ...], length: int) -> list[int]:
    """What transformers has the model in that folder say, which is asked once."""
    model = load_causal_lm(target)
    ids = model.generate(
        torch.tensor([prompt]), max_new_tokens=length, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return ids[0, len(prompt) :].tolist()
