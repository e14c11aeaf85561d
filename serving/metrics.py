"""Prometheus metrics of the server, under vLLM's names where vLLM has one.

Counters of rounds and requests are fed by the engine's events. What another object counts already is
read from it at scrape time.
"""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.events import RoundStats, SwapEvent
from serving.request import GenerationRequest, RequestStats

# fmt: off
_LATENCY_BUCKETS = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0,
)
_TOKEN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
)
_STALL_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
# fmt: on
_FINISHED_REASON = {"cancelled": "abort"}
"""vLLM's word where it differs from the engine's."""


class EngineState(Protocol):
    @property
    def draft_version(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...


class RecorderCounts(Protocol):
    @property
    def recorded(self) -> int: ...
    @property
    def dropped(self) -> int: ...


class TrainerState(Protocol):
    @property
    def state(self) -> str: ...
    @property
    def restarts(self) -> int: ...


class ServingMetrics:
    """An `EngineListener` with a registry of its own; every metric has the label `model_name`.

    Without a recorder or a trainer their metrics read 0. `trainer` may be set later, when one starts.
    """

    def __init__(
        self,
        engine: EngineState,
        model_name: str,
        *,
        recorder: RecorderCounts | None = None,
        trainer: TrainerState | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self.trainer = trainer
        self._engine = engine
        self._recorder = recorder
        self._model_name = model_name
        self._adapters_rejected = 0

        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(name, documentation, ["model_name", *labels], registry=self.registry)

        def histogram(name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(name, documentation, ["model_name"], buckets=buckets, registry=self.registry)
            return family.labels(model_name)

        self._drafts = counter("vllm:spec_decode_num_drafts", "Drafts verified: one a request and round.")
        self._draft_tokens = counter("vllm:spec_decode_num_draft_tokens", "Drafted tokens.")
        self._accepted_tokens = counter("vllm:spec_decode_num_accepted_tokens", "Accepted drafted tokens.")
        self._accepted_per_position = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by draft position.", "position"
        )
        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of finished requests.")
        self._generation_tokens = counter("vllm:generation_tokens", "Output tokens.")
        self._finished = counter("vllm:request_success", "Finished requests by reason.", "finished_reason")
        self._swaps = counter("hotdraft_swaps", "Draft weights exchanged while serving.", "reason")
        self._rollbacks = counter("hotdraft_rollbacks", "Swaps back to an older draft version.")
        self._swap_failures = counter("hotdraft_swap_failures", "Adapters that could not be swapped in.")
        for plain in (
            self._drafts,
            self._draft_tokens,
            self._accepted_tokens,
            self._prompt_tokens,
            self._generation_tokens,
            self._rollbacks,
            self._swap_failures,
        ):
            plain.labels(model_name)  # exported as 0 from the start, so that rates have a first point

        self._first_token = histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first output token.", _LATENCY_BUCKETS
        )
        self._end_to_end = histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to last output token.", _LATENCY_BUCKETS
        )
        self._queue_time = histogram(
            "vllm:request_queue_time_seconds", "Time a request waited for a slot.", _LATENCY_BUCKETS
        )
        self._token_time = histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time between a request's output tokens, after its first.",
            _TOKEN_BUCKETS,
        )
        self._swap_stall = histogram(
            "hotdraft_swap_stall_seconds", "Time decoding stood still for a swap.", _STALL_BUCKETS
        )
        self.registry.register(_ScrapeTime(self))

    def on_round(self, stats: RoundStats) -> None:
        model = self._model_name
        self._generation_tokens.labels(model).inc(stats.new_tokens)
        if not stats.drafted_tokens:
            return
        self._drafts.labels(model).inc(stats.requests)
        self._draft_tokens.labels(model).inc(stats.drafted_tokens)
        self._accepted_tokens.labels(model).inc(stats.accepted_tokens)
        for position, accepted in enumerate(stats.accepted_per_position):
            self._accepted_per_position.labels(model, str(position)).inc(accepted)

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None:
        model = self._model_name
        self._prompt_tokens.labels(model).inc(stats.prompt_tokens)
        self._finished.labels(model, _FINISHED_REASON.get(finish_reason, finish_reason)).inc()
        self._queue_time.observe(stats.queued_seconds)
        self._end_to_end.observe(stats.total_seconds)
        if stats.time_to_first_token is not None:
            self._first_token.observe(stats.time_to_first_token)
            if stats.completion_tokens > 1:
                decoding = stats.total_seconds - stats.time_to_first_token
                self._token_time.observe(decoding / (stats.completion_tokens - 1))

    def on_swap(self, event: SwapEvent) -> None:
        """Count a swap; its reason is a label, so it must be a fixed word, not a sentence."""
        self._swaps.labels(self._model_name, event.reason).inc()
        if event.version < event.previous_version:
            self._rollbacks.labels(self._model_name).inc()
        self._swap_stall.observe(event.stall_seconds)

    def count_swap_failure(self) -> None:
        self._swap_failures.labels(self._model_name).inc()

    def set_adapters_rejected(self, count: int) -> None:
        """How many versions in the registry were refused, by the gate or as broken."""
        self._adapters_rejected = count

    def scrape(self) -> Iterator[Metric]:
        """The metrics whose values live elsewhere, read now."""
        engine, recorder, trainer = self._engine, self._recorder, self.trainer
        yield self._gauge("vllm:num_requests_running", "Requests being decoded.", engine.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Requests waiting for a slot.", engine.num_waiting)
        yield self._gauge("hotdraft_draft_version", "Adapter version served; 0 is none.", engine.draft_version)
        yield self._count("hotdraft_adapters_rejected", "Adapters refused.", self._adapters_rejected)
        recorded, dropped = (recorder.recorded, recorder.dropped) if recorder else (0, 0)
        yield self._count("hotdraft_recorder_samples", "Requests recorded for training.", recorded)
        yield self._count("hotdraft_recorder_dropped", "Requests not recorded: queue full.", dropped)
        running, restarts = (trainer.state == "running", trainer.restarts) if trainer else (False, 0)
        yield self._gauge("hotdraft_trainer_running", "1 while the trainer runs.", running)
        yield self._count("hotdraft_trainer_restarts", "Restarts of the trainer.", restarts)

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _count(self, name: str, documentation: str, value: float) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family


class _ScrapeTime(Collector):
    def __init__(self, metrics: ServingMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.scrape()
