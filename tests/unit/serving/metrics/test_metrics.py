"""Exported names and values, read back by Prometheus' own parser."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hotdraft.pipeline.replay.buffer import ReplaySize
from hotdraft.pipeline.store.domains import MAX_DOMAINS
from hotdraft.serving.graphs.recurring import GraphCounts
from hotdraft.serving.messages.events import RoundStats, SwapEvent
from hotdraft.serving.messages.request import GenerationRequest, RequestStats, SamplingParams
from hotdraft.serving.metrics.listener import ServingMetrics
from hotdraft.serving.metrics.state_metrics import Sources
from hotdraft.serving.models.runner import Computation


@dataclass
class State:
    draft_version: int = 0
    computations: dict[str, Computation] = field(
        default_factory=lambda: {
            "target": Computation("native", "avx512_bf16", "bfloat16"),
            "draft": Computation("fused", "torch", "float32", "no compiler"),
        }
    )
    stalls: int = 5
    graphs: GraphCounts = field(default_factory=lambda: GraphCounts(7, 2, 11))
    num_running: int = 0
    num_waiting: int = 0
    recorded: int = 0
    dropped: int = 0
    left_out: dict[str, int] = field(default_factory=lambda: {"store": 0})
    state: str = "stopped"
    restarts: int = 0
    num_slots: int = 8
    max_model_len: int = 300
    errors: int = 0
    size: ReplaySize = field(default_factory=lambda: ReplaySize(0, 0, 0))
    unsent: int = 0
    refused: int = 0
    swap_failures: int = 0
    unusable: dict[int, str] = field(default_factory=dict)
    job_states: tuple[str, ...] = ()
    failures: dict[str, int] = field(default_factory=lambda: {"round": 0})

    def jobs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(state=state) for state in self.job_states]

    def silent_seconds(self, job: SimpleNamespace) -> float:
        return 12.0 if job.state == "running" else 0.0


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def metrics(state: State) -> ServingMetrics:
    sources = Sources(recorder=state, replay=state, trainer=state, jobs=state, curves=state, adapters=state)
    return ServingMetrics(state, "tiny", sources)


def read(metrics: ServingMetrics) -> dict[str, float]:
    """Exported values by sample name; labels of one metric alone are appended as /value."""
    values = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "tiny"
            assert labels.pop("engine", None) == ("0" if sample.name.startswith("vllm:") else None)
            if labels.pop("le", "+Inf") == "+Inf":
                values["/".join([sample.name, *labels.values()])] = sample.value
    return values


def round_stats(**changes: object) -> RoundStats:
    values = {
        "k": 3,
        "drafts": 2,
        "proposed_tokens": 6,
        "accepted_tokens": 4,
        "accepted_per_position": (2, 1, 1),
        "guessed_tokens": 2,
        "accepted_guesses": 1,
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
        "first_examined": 2,
        "first_accepted": 2,
        "guessed_tokens": 2,
        "accepted_guesses": 1,
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
        "hotdraft_decode_seconds": "counter",
        "hotdraft_plain_decode_seconds": "counter",
        "vllm:prompt_tokens": "counter",
        "vllm:generation_tokens": "counter",
        "vllm:request_success": "counter",
        "vllm:num_requests_running": "gauge",
        "vllm:num_requests_waiting": "gauge",
        "vllm:time_to_first_token_seconds": "histogram",
        "vllm:e2e_request_latency_seconds": "histogram",
        "vllm:request_queue_time_seconds": "histogram",
        "vllm:request_time_per_output_token_seconds": "histogram",
        "vllm:inter_token_latency_seconds": "histogram",
        "vllm:request_inference_time_seconds": "histogram",
        "vllm:request_prefill_time_seconds": "histogram",
        "vllm:request_decode_time_seconds": "histogram",
        "vllm:request_prompt_tokens": "histogram",
        "vllm:request_generation_tokens": "histogram",
        "vllm:request_max_num_generation_tokens": "histogram",
        "vllm:request_params_max_tokens": "histogram",
        "vllm:kv_cache_usage_perc": "gauge",
        "hotdraft_rounds": "counter",
        "hotdraft_proposed_tokens": "counter",
        "hotdraft_accepted_tokens": "counter",
        "hotdraft_accepted_alternative_tokens": "counter",
        "hotdraft_alternative_tokens": "counter",
        "hotdraft_domain_draft_tokens": "counter",
        "hotdraft_domain_accepted_tokens": "counter",
        "hotdraft_replay_requests": "gauge",
        "hotdraft_replay_bytes": "gauge",
        "hotdraft_replay_shards": "gauge",
        "hotdraft_replay_quarantined": "gauge",
        "hotdraft_replay_errors": "counter",
        "hotdraft_jobs": "gauge",
        "hotdraft_job_silent_seconds": "gauge",
        "hotdraft_mlflow_points_unsent": "gauge",
        "hotdraft_mlflow_points_dropped": "counter",
        "hotdraft_connections": "gauge",
        "hotdraft_connections_closed": "counter",
        "hotdraft_draft_version": "gauge",
        "hotdraft_swaps": "counter",
        "hotdraft_rollbacks": "counter",
        "hotdraft_adapter_sync_errors": "counter",
        "hotdraft_adapter_unusable": "gauge",
        "hotdraft_adapters_rejected": "counter",
        "hotdraft_engine_failures": "counter",
        "hotdraft_forward_stalls": "counter",
        "hotdraft_runner": "gauge",
        "hotdraft_graphs": "gauge",
        "hotdraft_forwards_without_graph": "counter",
        "hotdraft_swap_failures": "counter",
        "hotdraft_swap_stall_seconds": "histogram",
        "hotdraft_recorder_samples": "counter",
        "hotdraft_recorder_dropped": "counter",
        "hotdraft_recorder_left_out": "counter",
        "hotdraft_trainer_restarts": "counter",
        "hotdraft_trainer_running": "gauge",
    }


def test_what_computes_the_models(metrics: ServingMetrics) -> None:
    values = read(metrics)
    assert values["hotdraft_runner/avx512_bf16/target/native/bfloat16"] == 1
    assert values["hotdraft_runner/torch/draft/fused/float32"] == 1
    assert values["hotdraft_forward_stalls_total"] == 5
    assert (values["hotdraft_graphs/captured"], values["hotdraft_graphs/dropped"]) == (7, 2)
    assert values["hotdraft_forwards_without_graph_total"] == 11


def test_rounds(metrics: ServingMetrics) -> None:
    metrics.on_round(round_stats(inter_token_seconds=(0.03,), alternatives=4, accepted_alternatives=1))
    metrics.on_round(
        round_stats(drafts=1, proposed_tokens=3, new_tokens=2, accepted_tokens=1, accepted_per_position=(1, 0, 0))
    )
    metrics.on_round(round_stats(k=0, new_tokens=2, proposed_tokens=0, accepted_tokens=0, accepted_per_position=()))
    values = read(metrics)
    assert values["vllm:spec_decode_num_drafts_total"] == 3, "one a request and round, none at k = 0"
    assert values["vllm:generation_tokens_total"] == 6 + 2 + 2, "plain rounds generate too"
    assert values["hotdraft_rounds_total/3"] == 2
    assert values["hotdraft_rounds_total/0"] == 1
    assert values["vllm:inter_token_latency_seconds_count"] == 1
    assert values["vllm:inter_token_latency_seconds_sum"] == pytest.approx(0.03)
    assert values["vllm:spec_decode_num_draft_tokens_total"] == 9
    assert [values[f"hotdraft_proposed_tokens_total/{who}"] for who in ("draft", "suffix")] == [5, 4]
    assert [values[f"hotdraft_accepted_tokens_total/{who}"] for who in ("draft", "suffix")] == [3, 2]
    assert values["vllm:spec_decode_num_accepted_tokens_total"] == 5
    assert values["hotdraft_alternative_tokens_total"] == 4
    assert values["hotdraft_accepted_alternative_tokens_total"] == 1
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
    assert values["vllm:request_success_total/error"] == 0, "exported from the start"
    assert values["vllm:request_queue_time_seconds_sum"] == 1.5
    assert values["vllm:request_inference_time_seconds_sum"] == 3 * 2.5
    assert values["vllm:request_prefill_time_seconds_sum"] == 2 * 0.5
    assert values["vllm:request_decode_time_seconds_sum"] == 2 * 2.0
    assert values["vllm:request_prompt_tokens_sum"] == 30
    assert values["vllm:request_generation_tokens_sum"] == 6
    assert values["vllm:request_max_num_generation_tokens_sum"] == 6
    assert values["vllm:request_params_max_tokens_sum"] == 3 * 16
    assert values["vllm:time_to_first_token_seconds_count"] == 2
    assert values["vllm:request_time_per_output_token_seconds_count"] == 1
    assert values["vllm:request_time_per_output_token_seconds_sum"] == pytest.approx(2.0 / 4)


def test_lengths_have_vllms_buckets_up_to_the_longest(metrics: ServingMetrics) -> None:
    text = generate_latest(metrics.registry).decode()
    [family] = [f for f in text_string_to_metric_families(text) if f.name == "vllm:request_prompt_tokens"]
    bounds = [sample.labels["le"] for sample in family.samples if "le" in sample.labels]
    assert bounds == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "200.0", "+Inf"]


def test_acceptance_by_domain_and_the_number_of_domains_is_bounded(metrics: ServingMetrics) -> None:
    for number in range(2 * MAX_DOMAINS):
        request = replace(REQUEST, domain=f"d {number}")
        metrics.on_finish(request, request_stats(), "stop")
        metrics.on_finish(request, request_stats(accepted_tokens=1), "stop")
    metrics.on_finish(replace(REQUEST, domain="plain"), request_stats(drafted_tokens=0, accepted_tokens=0), "stop")
    values = read(metrics)
    drafted = {
        name: value for name, value in values.items() if name.startswith("hotdraft_domain_draft_tokens_total")
    }
    assert len(drafted) == MAX_DOMAINS + 1
    assert drafted["hotdraft_domain_draft_tokens_total/d_0"] == 12
    assert values["hotdraft_domain_accepted_tokens_total/d_0"] == 5
    assert drafted["hotdraft_domain_draft_tokens_total/other"] == MAX_DOMAINS * 12


def test_a_domain_that_is_forgotten_leaves_the_metrics(metrics: ServingMetrics) -> None:
    for domain in ("invoices", "letters"):
        metrics.on_finish(replace(REQUEST, domain=domain), request_stats(), "stop")
    metrics._domains._forget("invoices")
    told = {name.split("/")[1] for name in read(metrics) if name.startswith("hotdraft_domain_") and "/" in name}
    assert told == {"letters"}


def test_swaps(metrics: ServingMetrics) -> None:
    metrics.on_swap(SwapEvent(version=1, previous_version=0, reason="promotion", stall_seconds=0.002))
    metrics.on_swap(SwapEvent(version=2, previous_version=1, reason="promotion", stall_seconds=0.002))
    metrics.on_swap(SwapEvent(version=1, previous_version=2, reason="rollback", stall_seconds=0.002))
    values = read(metrics)
    assert values["hotdraft_swaps_total/promotion"] == 2
    assert values["hotdraft_swaps_total/rollback"] == 1
    assert values["hotdraft_rollbacks_total"] == 1
    assert values["hotdraft_swap_stall_seconds_count"] == 3
    assert values["hotdraft_swap_stall_seconds_sum"] == pytest.approx(0.006)


def test_what_lives_elsewhere_is_read_at_scrape_time(metrics: ServingMetrics, state: State) -> None:
    before = read(metrics)
    state.draft_version, state.num_running, state.num_waiting = 4, 2, 9
    state.recorded, state.dropped, state.state, state.restarts = 20, 3, "running", 1
    state.size, state.unsent, state.errors = ReplaySize(2, 4096, 20, quarantined=6), 7, 8
    state.job_states = ("running", "accepted", "accepted")
    state.refused, state.swap_failures, state.left_out = 5, 11, {"store": 13}
    after = read(metrics)
    expected = {
        "hotdraft_draft_version": 4,
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 9,
        "vllm:kv_cache_usage_perc": 0.25,
        "hotdraft_replay_shards": 2,
        "hotdraft_replay_bytes": 4096,
        "hotdraft_replay_requests": 20,
        "hotdraft_replay_quarantined": 6,
        "hotdraft_replay_errors_total": 8,
        "hotdraft_jobs/running": 1,
        "hotdraft_jobs/accepted": 2,
        "hotdraft_job_silent_seconds": 12,
        "hotdraft_mlflow_points_unsent": 7,
        "hotdraft_mlflow_points_dropped_total": 3,
        "hotdraft_recorder_samples_total": 20,
        "hotdraft_recorder_dropped_total": 3,
        "hotdraft_recorder_left_out_total/store": 13,
        "hotdraft_trainer_running": 1,
        "hotdraft_trainer_restarts_total": 1,
        "hotdraft_adapters_rejected_total": 5,
        "hotdraft_swap_failures_total": 11,
        "hotdraft_adapter_sync_errors_total": 8,
    }
    assert {name: before[name] for name in expected} == dict.fromkeys(expected, 0)
    assert {name: after[name] for name in expected} == expected


def test_without_recorder_and_trainer_they_read_zero(state: State) -> None:
    values = read(ServingMetrics(state, "tiny"))
    assert values["hotdraft_recorder_samples_total"] == 0
    assert values["hotdraft_trainer_running"] == 0
    assert values["hotdraft_replay_shards"] == 0
    assert values["hotdraft_mlflow_points_unsent"] == 0


def test_two_servers_in_one_process_do_not_collide(state: State) -> None:
    first, second = ServingMetrics(state, "tiny"), ServingMetrics(state, "tiny")
    first.on_round(round_stats())
    assert read(second)["vllm:spec_decode_num_drafts_total"] == 0
