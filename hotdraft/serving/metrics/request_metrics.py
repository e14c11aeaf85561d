"""What a finished request adds to the metrics: its latencies by phase, its lengths, and why it ended.

Names are vLLM's, and so are the buckets, with finer ones below: histograms of both can be summed.
"""

from typing import get_args

from prometheus_client import Histogram

from hotdraft.serving.messages.request import FinishReason, GenerationRequest, RequestStats
from hotdraft.serving.metrics.families import MetricFamilies

# fmt: off
_REQUEST_BUCKETS = (
    0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)
_FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)
TOKEN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)
# fmt: on
_FINISHED_REASON = {"cancelled": "abort"}
"""vLLM's word where it differs from the engine's."""


class RequestMetrics:
    def __init__(self, families: MetricFamilies, max_model_len: int) -> None:
        lengths = _one_two_five(max_model_len)

        def seconds(name: str, documentation: str, buckets: tuple[float, ...] = _REQUEST_BUCKETS) -> Histogram:
            return families.histogram(f"vllm:{name}_seconds", documentation, buckets)

        def tokens(name: str, documentation: str) -> Histogram:
            return families.histogram(f"vllm:{name}", documentation, lengths)

        self._prompt_tokens = families.counter("vllm:prompt_tokens", "Prompt tokens of finished requests.")
        self._finished = families.counter_by(
            "finished_reason", "vllm:request_success", "Finished requests by reason."
        )
        for reason in get_args(FinishReason):
            self._finished(finished_reason=_FINISHED_REASON.get(reason, reason))

        self._first_token = seconds("time_to_first_token", "Arrival to first output token.", _FIRST_TOKEN_BUCKETS)
        self._token_time = seconds(
            "request_time_per_output_token",
            "Mean time between a request's output tokens, after its first.",
            TOKEN_BUCKETS,
        )
        self._end_to_end = seconds("e2e_request_latency", "Arrival to last output token.")
        self._queue = seconds("request_queue_time", "Time a request waited for a slot.")
        self._inference = seconds("request_inference_time", "Slot to last output token.")
        self._prefill = seconds("request_prefill_time", "Slot to first output token.")
        self._decode = seconds("request_decode_time", "First to last output token.")

        self._prompt_length = tokens("request_prompt_tokens", "Prompt tokens of a request.")
        self._output_length = tokens("request_generation_tokens", "Output tokens of a request.")
        self._longest_output = tokens(
            "request_max_num_generation_tokens", "Output tokens of a request; each of n choices counts as one."
        )
        self._max_tokens = tokens("request_params_max_tokens", "Output tokens a request allows, at most.")

    def observe(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None:
        self._prompt_tokens.inc(stats.prompt_tokens)
        self._finished(finished_reason=_FINISHED_REASON.get(finish_reason, finish_reason)).inc()
        self._prompt_length.observe(stats.prompt_tokens)
        self._output_length.observe(stats.completion_tokens)
        self._longest_output.observe(stats.completion_tokens)
        self._max_tokens.observe(request.params.max_tokens)

        self._end_to_end.observe(stats.total_seconds)
        self._queue.observe(stats.queued_seconds)
        self._inference.observe(stats.total_seconds - stats.queued_seconds)
        if stats.time_to_first_token is None:
            return
        decoding = stats.total_seconds - stats.time_to_first_token
        self._first_token.observe(stats.time_to_first_token)
        self._prefill.observe(stats.time_to_first_token - stats.queued_seconds)
        self._decode.observe(decoding)
        if stats.completion_tokens > 1:
            self._token_time.observe(decoding / (stats.completion_tokens - 1))


def _one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, … up to `largest`, as vLLM's histograms of lengths have them."""
    steps = (digit * 10**power for power in range(len(str(largest))) for digit in (1, 2, 5))
    return tuple(float(step) for step in steps if step <= largest)
