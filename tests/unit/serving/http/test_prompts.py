"""Prompts are encoded beside the event loop, and not at all for clients that have gone."""

import asyncio
import json
import threading
import time
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Encoding
from transformers import PreTrainedTokenizerFast

from hotdraft.serving.messages.prompt_encoder import PromptEncoder, PromptError, encode_chat, encode_text
from tests.unit.serving.http.scripted import USER, WORDS, ScriptedEngine, make_tokenizer

LONG = "hello " * 300
"""Longer than what is encoded at once."""


class SlowTokenizer:
    """Waits until it is told to go on."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._tokenizer = engine.tokenizer
        self.chat_template = engine.tokenizer.chat_template
        self.may_go_on = threading.Event()
        self.calls = 0

    @property
    def backend_tokenizer(self) -> "SlowTokenizer":
        return self

    def encode(self, text: str, **options: bool) -> Encoding:
        self.calls += 1
        assert self.may_go_on.wait(10)
        return self._tokenizer.backend_tokenizer.encode(text, **options)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def get_vocab(self) -> dict[str, int]:
        return self._tokenizer.get_vocab()


def test_a_long_prompt_holds_up_neither_the_loop_nor_short_ones() -> None:
    engine = ScriptedEngine(max_model_len=100_000)
    slow = SlowTokenizer(engine)

    async def scene() -> list[list[int]]:
        encoder = PromptEncoder(engine)
        fast, engine.tokenizer = engine.tokenizer, slow
        held = asyncio.create_task(encoder.texts(["hello " * 10_000]))
        while slow.calls == 0:
            await asyncio.sleep(0.001)
        engine.tokenizer = fast
        assert await encoder.texts([LONG]) == [[5] * 300]
        assert not held.done()
        slow.may_go_on.set()
        return await held

    assert asyncio.run(scene()) == [[5] * 10_000]


def test_a_call_that_is_cancelled_before_its_turn_does_no_work() -> None:
    engine = ScriptedEngine(max_model_len=100_000)
    engine.tokenizer = slow = SlowTokenizer(engine)

    async def scene() -> None:
        encoder = PromptEncoder(engine)
        tasks = [asyncio.create_task(encoder.texts([LONG])) for _ in range(3)]
        while slow.calls == 0:
            await asyncio.sleep(0.001)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.sleep(0.01)
        slow.may_go_on.set()
        assert await tasks[0] == [[5] * 300]

    asyncio.run(scene())
    assert slow.calls == 1


def test_many_short_ones_are_encoded_beside_the_loop_as_a_long_one_is() -> None:
    class Observed:
        def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
            self._tokenizer = tokenizer

        def __getattr__(self, name: str) -> Any:
            threads.append(threading.current_thread().name.rsplit("_")[0])
            return getattr(self._tokenizer, name)

        def __call__(self, text: str, **options: bool) -> Any:
            return self.__getattr__("__call__")(text, **options)

        def __len__(self) -> int:
            return len(self._tokenizer)

    async def scene() -> None:
        encoder = PromptEncoder(engine)
        engine.tokenizer = Observed(engine.tokenizer)
        for number, thread in [(1, "MainThread"), (100, "tokenize-short"), (1000, "tokenize-long")]:
            for encode in (encoder.texts(["a"] * number), encoder.chat([{"role": "user", "content": ""}] * number)):
                threads.clear()
                await encode
                assert set(threads) == {thread}
        threads.clear()
        await encoder.chat(USER, {"said by the template": "a" * 2000})
        assert set(threads) == {"tokenize-short"}

    threads: list[str] = []
    engine: Any = ScriptedEngine(max_model_len=100_000)
    asyncio.run(scene())


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 3])
def test_who_leaves_while_a_prompt_is_encoded_asks_the_engine_for_nothing(
    url: str, engine: ScriptedEngine, n: int
) -> None:
    engine.max_model_len = 1000
    engine.tokenizer = slow = SlowTokenizer(engine)
    text = "hello " * 106  # which the served encoder takes, as it was made for 64 tokens of 10 characters at most
    body = {"model": "tiny-chat", "prompt": [text, text], "n": n}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json=body, timeout=0.5)
    assert slow.calls == 1
    deadline = time.monotonic() + 5
    while 'status="499"' not in httpx.get(f"{url}/metrics").text and time.monotonic() < deadline:
        time.sleep(0.05)
    slow.may_go_on.set()
    time.sleep(0.1)
    assert not engine.requests
    assert 'status="499"' in httpx.get(f"{url}/metrics").text


def test_what_is_encoded_is_what_the_tokenizer_says() -> None:
    engine = ScriptedEngine(max_model_len=1000)
    texts = ["hello there", LONG]
    encoded = asyncio.run(PromptEncoder(engine).texts([*texts, [5, 6]]))
    assert encoded == [*(encode_text(engine.tokenizer, text) for text in texts), [5, 6]]


def test_a_template_that_cannot_join_what_it_is_given_is_the_clients_error() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content + 1 }}"
    with pytest.raises(PromptError, match="refuses these messages"):
        encode_chat(tokenizer, [{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    ("told", "hears"),
    [
        ({}, "hello system:"),
        ({"chat_template_kwargs": None}, "hello system:"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "be system:"),
        ({"chat_template_kwargs": {"enable_thinking": True, "of no template": "self"}}, "there system:"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "hello user:"),
        ({"chat_template_kwargs": {}, "reasoning_effort": "none"}, "be brief"),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, "there brief"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": "none"}, "be brief"),
    ],
    ids=str,
)
def test_the_chat_template_is_told_what_vllm_would_tell_it(
    client: openai.OpenAI, engine: ScriptedEngine, told: dict[str, Any], hears: str
) -> None:
    engine.tokenizer.chat_template = (
        "{{ 'hello' if enable_thinking is undefined else 'there' if enable_thinking else 'be' }}"
        " {{ {'none': 'brief', 'low': 'user:'}[reasoning_effort] | default('system:') }}"
    )
    client.chat.completions.create(model="tiny-chat", messages=USER, extra_body=told)
    assert [WORDS[token] for token in engine.requests[0].prompt_ids] == hears.split()


@pytest.mark.parametrize(
    "name", ["messages", "tools", "chat_template", "tokenize", "add_generation_prompt", "self"]
)
def test_a_template_is_told_nothing_in_our_name(client: openai.OpenAI, engine: ScriptedEngine, name: str) -> None:
    told = {"chat_template_kwargs": {"enable_thinking": True, name: "{{ 1 }}"}}
    says = f"chat_template_kwargs must not have {name}: that is the server's to say"
    with pytest.raises(openai.BadRequestError, match=says) as caught:
        client.chat.completions.create(model="tiny-chat", messages=USER, extra_body=told)
    assert caught.value.param == "chat_template_kwargs"
    assert not engine.requests


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([], "valid dictionary"),
        ({"x": {"y": 1}}, "x: must be true or false, a number or a text, not an object"),
        ({"x": [1]}, "x: must be true or false, a number or a text, not a list"),
        ({"x": "long" * 1000}, "x: must have at most 2048 characters, not 4000"),
        ({"x": "\ud800"}, "x: must be valid Unicode text"),
        ({str(number): [] for number in range(17)}, "at most 16 entries, not 17"),
    ],
    ids=lambda case: str(case)[:40],
)
def test_what_a_template_may_be_told_is_bounded(url: str, engine: ScriptedEngine, told: object, says: str) -> None:
    body = {"model": "tiny-chat", "messages": USER, "chat_template_kwargs": told}
    content, headers = json.dumps(body), {"content-type": "application/json"}  # which spells half a surrogate pair
    reply = httpx.post(f"{url}/v1/chat/completions", content=content, headers=headers)
    assert reply.status_code == 400
    assert says in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"].startswith("chat_template_kwargs")
    assert not engine.requests


@pytest.mark.parametrize("budget", [10**6, 0, "many", None])
def test_what_a_template_cannot_reckon_with_is_the_clients_error(
    client: openai.OpenAI, engine: ScriptedEngine, budget: object
) -> None:
    engine.tokenizer.chat_template = "{{ range(budget) | length // budget }}"
    told = {"chat_template_kwargs": {"budget": budget}}
    with pytest.raises(openai.BadRequestError, match="The chat template refuses these messages"):
        client.chat.completions.create(model="tiny-chat", messages=USER, extra_body=told)
