"""What may be recorded of a request is decided when it begins, by its own parameters."""

from types import SimpleNamespace
from typing import Any

import pytest

from hotdraft.serving.messages.request import DEFAULT_DOMAIN, UNRECORDED_DOMAIN
from hotdraft.serving.vllm.worker.requests import ServedRequest
from tests.unit.serving.vllm.fakes import new_request


def served(**told: Any) -> ServedRequest:
    request = ServedRequest.of(new_request("r", **told))
    assert request is not None
    return request


@pytest.mark.parametrize(
    "told",
    [
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {3: 1.0}},
        {"structured_outputs": SimpleNamespace(json="{}")},
        {"allowed_token_ids": [1]},
        {"bad_words": ["no"]},
        {"min_tokens": 4},
    ],
)
def test_an_answer_that_does_not_follow_the_logits_is_left_out_by_the_parameters_name(told: dict[str, Any]) -> None:
    assert served(**told).left_out == next(iter(told))


def test_other_weights_and_other_inputs_than_the_drafts_are_left_out() -> None:
    for name, reason in {
        "lora_request": "lora",
        "mm_features": "multimodal",
        "prompt_embeds": "prompt_embeds",
    }.items():
        new = new_request("r")
        setattr(new, name, [object()])
        request = ServedRequest.of(new)
        assert request is not None
        assert request.left_out == reason


def test_a_salt_comes_with_the_request() -> None:
    assert served(extra_args={"hotdraft_client": "c", "hotdraft_salted": 1}).salted
    assert not served(extra_args={"hotdraft_client": "c"}).salted


def test_the_domain_comes_with_the_request_and_of_unstored_ones_nothing_is_told() -> None:
    told = {"hotdraft_domain": "sql", "hotdraft_client": "c"}
    assert served(extra_args=told).domain == "sql"
    assert served(extra_args=told).left_out is None
    assert served(extra_args={"hotdraft_client": ""}).domain == DEFAULT_DOMAIN
    for no in (0, 0.0, "0", "false", "off", False):
        request = served(extra_args={**told, "hotdraft_store": no})
        assert (request.domain, request.left_out) == (UNRECORDED_DOMAIN, "store")


@pytest.mark.parametrize("extra", [None, {}, {"hotdraft_domain": "sql"}])
def test_what_came_by_no_door_that_a_client_could_say_no_at_is_not_kept(extra: dict[str, Any] | None) -> None:
    request = served(extra_args=extra)
    assert (request.domain, request.left_out) == (UNRECORDED_DOMAIN, "store")


def test_filters_are_recorded_as_ours_are() -> None:
    request = served(top_k=-1, top_p=0.9, min_p=0.1, temperature=0.7, seed=3)
    assert (request.top_k, request.top_p, request.min_p, request.temperature) == (0, 0.9, 0.1, 0.7)
    assert request.seeded
    assert request.left_out is None


def test_what_generates_nothing_is_none() -> None:
    new = new_request("r")
    new.sampling_params = None
    assert ServedRequest.of(new) is None
    new = new_request("r")
    new.prompt_token_ids = None
    assert ServedRequest.of(new) is None
