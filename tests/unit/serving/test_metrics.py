"""Exported names and values, read back by Prometheus' own parser."""

from dataclasses import dataclass

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serving.events import RoundStats, SwapEvent
from serving.metrics import ServingMetrics
from serving.request import GenerationRequest, RequestStats, SamplingParams


@dataclass
class State:
    draft_version: int = 0
    num_running: int = 0
    num_waiting: int = 0
    recorded: int = 0
    dropped: int = 0
    state: str = "stopped"
    restarts: int = 0


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def metrics(state: State) -> ServingMetrics:
    return ServingMetrics(state, "tiny", recorder=state, trainer=state)


def read(metrics: ServingMetrics) -> dict[str, float]:
    """Exported values by sample name; a label other than model_name and le is appended as /value."""
    values = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "tiny"
            if labels.pop("le", "+Inf") == "+Inf":
                values["/".join([sample.name, *labels.values()])] = sample.value
    return values


def round_stats(**changes: object) -> RoundStats:
    values = {
        "k": 3,
        "requests": 2,
        "drafted_tokens": 6,
        "accepted_tokens": 4,
        "accepted_per_position": (2, 1, 1),
        "new_tokens": 6,
        "seconds": 0.1,
        "draft_version": 1,
    }
    return RoundStats(**(values | changes))


def request_stats(**changes: object) -> RequestStats:
    values = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "rounds": 2,
        "drafted_tokens": 6,
        "examined_tokens": 5,
        "accepted_tokens": 4,
        "draft_version": 1,
        "queued_seconds": 0.5,
        "time_to_first_token": 1.0,
        "total_seconds": 3.0,
    }
    return RequestStats(**(values | changes))


REQUEST = GenerationRequest("r1", (1, 2), SamplingParams())


def test_names_without_traffic(metrics: ServingMetrics) -> None:
    text = generate_latest(metrics.registry).decode()
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    families = {name: kind for name, kind in families.items() if not name.endswith("_created")}
    assert families == {
        "vllm:spec_decode_num_drafts": "counter",
        "vllm:spec_decode_num_draft_tokens": "counter",
        "vllm:spec_decode_num_accepted_tokens": "counter",
        "vllm:spec_decode_num_accepted_tokens_per_pos": "counter",
        "vllm:prompt_tokens": "counter",
        "vllm:generation_tokens": "counter",
        "vllm:request_success": "counter",
        "vllm:num_requests_running": "gauge",
        "vllm:num_requests_waiting": "gauge",
        "vllm:time_to_first_token_seconds": "histogram",
        "vllm:e2e_request_latency_seconds": "histogram",
        "vllm:request_queue_time_seconds": "histogram",
        "vllm:request_time_per_output_token_seconds": "histogram",
        "hotdraft_draft_version": "gauge",
        "hotdraft_swaps": "counter",
        "hotdraft_rollbacks": "counter",
        "hotdraft_adapters_rejected": "counter",
        "hotdraft_swap_failures": "counter",
        "hotdraft_swap_stall_seconds": "histogram",
        "hotdraft_recorder_samples": "counter",
        "hotdraft_recorder_dropped": "counter",
        "hotdraft_trainer_restarts": "counter",
        "hotdraft_trainer_running": "gauge",
    }


def test_rounds(metrics: ServingMetrics) -> None:
    metrics.on_round(round_stats())
    metrics.on_round(
        round_stats(requests=1, drafted_tokens=3, new_tokens=2, accepted_tokens=1, accepted_per_position=(1, 0, 0))
    )
    metrics.on_round(round_stats(k=0, new_tokens=2, drafted_tokens=0, accepted_tokens=0, accepted_per_position=()))
    values = read(metrics)
    assert values["vllm:spec_decode_num_drafts_total"] == 3, "one a request and round, none at k = 0"
    assert values["vllm:generation_tokens_total"] == 6 + 2 + 2, "plain rounds generate too"
    assert values["vllm:spec_decode_num_draft_tokens_total"] == 9
    assert values["vllm:spec_decode_num_accepted_tokens_total"] == 5
    assert values["vllm:spec_decode_num_accepted_tokens_per_pos_total/0"] == 3
    assert values["vllm:spec_decode_num_accepted_tokens_per_pos_total/1"] == 1
    assert values["vllm:spec_decode_num_accepted_tokens_per_pos_total/2"] == 1


def test_requests(metrics: ServingMetrics) -> None:
    metrics.on_finish(REQUEST, request_stats(), "stop")
    metrics.on_finish(REQUEST, request_stats(completion_tokens=1), "length")
    metrics.on_finish(REQUEST, request_stats(completion_tokens=0, time_to_first_token=None), "cancelled")
    values = read(metrics)
    assert values["vllm:prompt_tokens_total"] == 30
    for reason in ("stop", "length", "abort"):
        assert values[f"vllm:request_success_total/{reason}"] == 1
    assert values["vllm:e2e_request_latency_seconds_count"] == 3
    assert values["vllm:e2e_request_latency_seconds_sum"] == 9.0
    assert values["vllm:request_queue_time_seconds_sum"] == 1.5
    assert values["vllm:time_to_first_token_seconds_count"] == 2
    assert values["vllm:request_time_per_output_token_seconds_count"] == 1
    assert values["vllm:request_time_per_output_token_seconds_sum"] == pytest.approx(2.0 / 4)


def test_swaps(metrics: ServingMetrics) -> None:
    metrics.on_swap(SwapEvent(version=1, previous_version=0, reason="promotion", stall_seconds=0.002))
    metrics.on_swap(SwapEvent(version=2, previous_version=1, reason="promotion", stall_seconds=0.002))
    metrics.on_swap(SwapEvent(version=1, previous_version=2, reason="rollback", stall_seconds=0.002))
    metrics.count_swap_failure()
    values = read(metrics)
    assert values["hotdraft_swaps_total/promotion"] == 2
    assert values["hotdraft_swaps_total/rollback"] == 1
    assert values["hotdraft_rollbacks_total"] == 1
    assert values["hotdraft_swap_failures_total"] == 1
    assert values["hotdraft_swap_stall_seconds_count"] == 3
    assert values["hotdraft_swap_stall_seconds_sum"] == pytest.approx(0.006)


def test_what_lives_elsewhere_is_read_at_scrape_time(metrics: ServingMetrics, state: State) -> None:
    before = read(metrics)
    state.draft_version, state.num_running, state.num_waiting = 4, 2, 9
    state.recorded, state.dropped, state.state, state.restarts = 20, 3, "running", 1
    metrics.set_adapters_rejected(5)
    after = read(metrics)
    expected = {
        "hotdraft_draft_version": 4,
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 9,
        "hotdraft_recorder_samples_total": 20,
        "hotdraft_recorder_dropped_total": 3,
        "hotdraft_trainer_running": 1,
        "hotdraft_trainer_restarts_total": 1,
        "hotdraft_adapters_rejected_total": 5,
    }
    assert {name: before[name] for name in expected} == dict.fromkeys(expected, 0)
    assert {name: after[name] for name in expected} == expected


def test_without_recorder_and_trainer_they_read_zero(state: State) -> None:
    values = read(ServingMetrics(state, "tiny"))
    assert values["hotdraft_recorder_samples_total"] == 0
    assert values["hotdraft_trainer_running"] == 0


def test_two_servers_in_one_process_do_not_collide(state: State) -> None:
    first, second = ServingMetrics(state, "tiny"), ServingMetrics(state, "tiny")
    first.on_round(round_stats())
    assert read(second)["vllm:spec_decode_num_drafts_total"] == 0
