"""Prometheus metrics of the server, under vLLM's names where vLLM has one.

Counters of rounds and requests are fed by the engine's events. What another object counts already is
read from it at scrape time, see `serving.metrics.state_metrics`.
"""

from typing import get_args

from hotdraft.pipeline.store.domains import DomainNames
from hotdraft.serving.messages.events import RoundStats, SwapEvent, SwapReason
from hotdraft.serving.messages.request import GenerationRequest, RequestStats
from hotdraft.serving.metrics.families import MetricFamilies
from hotdraft.serving.metrics.request_metrics import TOKEN_BUCKETS, RequestMetrics
from hotdraft.serving.metrics.state_metrics import EngineState, Sources, StateMetrics

_STALL_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class ServingMetrics:
    """An `EngineListener` with a registry of its own; every metric has the label `model_name`.

    What others count is read from `sources`.
    """

    def __init__(self, engine: EngineState, model_name: str, sources: Sources | None = None) -> None:
        families = MetricFamilies(model_name)
        self.registry = families.registry
        self.sources = sources or Sources()
        StateMetrics(families, engine, self.sources)
        self._requests = RequestMetrics(families, engine.max_model_len)
        self._domains = DomainNames(self._forget_domain)

        counter, counter_by = families.counter, families.counter_by
        self._drafts = counter("vllm:spec_decode_num_drafts", "Drafts verified: one a request and round.")
        self._draft_tokens = counter("vllm:spec_decode_num_draft_tokens", "Proposed tokens, drafted or guessed.")
        self._accepted_tokens = counter("vllm:spec_decode_num_accepted_tokens", "Accepted ones of them.")
        self._accepted_per_position = counter_by(
            "position", "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by proposed position."
        )
        self._proposed = counter_by("proposer", "hotdraft_proposed_tokens", "Proposed tokens, by who did.")
        self._accepted = counter_by(
            "proposer", "hotdraft_accepted_tokens", "Accepted tokens, by who proposed them: draft or suffix."
        )
        self._alternatives = counter(
            "hotdraft_alternative_tokens", "Second choices of the draft that the target read beside the proposed."
        )
        self._accepted_alternatives = counter(
            "hotdraft_accepted_alternative_tokens", "Those that came, each of which gave another token."
        )
        self._generation_tokens = counter("vllm:generation_tokens", "Output tokens.")
        self._inter_token = families.histogram(
            "vllm:inter_token_latency_seconds",
            "Time between a request's rounds, each of which yields one token or several.",
            TOKEN_BUCKETS,
        )
        self._decode_seconds = counter("hotdraft_decode_seconds", "Time in rounds since their costs are known.")
        self._plain_seconds = counter(
            "hotdraft_plain_decode_seconds",
            "Time that rounds without a draft would have taken for the same tokens, by measured costs: over "
            "hotdraft_decode_seconds_total it is the speed-up.",
        )
        self._rounds = counter_by("k", "hotdraft_rounds", "Rounds by k: the most tokens proposed for a request.")
        self._domain_draft_tokens = counter_by(
            "domain", "hotdraft_domain_draft_tokens", "Drafted tokens of finished requests, by domain."
        )
        self._domain_accepted_tokens = counter_by(
            "domain", "hotdraft_domain_accepted_tokens", "Accepted tokens of finished requests, by domain."
        )
        self._swaps = counter_by("reason", "hotdraft_swaps", "Draft weights exchanged while serving.")
        for reason in get_args(SwapReason):
            self._swaps(reason=reason)  # exported as 0 from the start, so that the first of each is an increase
        self._rollbacks = counter("hotdraft_rollbacks", "Swaps away from a draft version that was taken back.")
        self._swap_stall = families.histogram(
            "hotdraft_swap_stall_seconds", "Time decoding stood still for a swap.", _STALL_BUCKETS
        )

    def on_round(self, stats: RoundStats) -> None:
        self._generation_tokens.inc(stats.new_tokens)
        self._rounds(k=stats.k).inc()
        if stats.plain_seconds is not None:
            self._decode_seconds.inc(stats.seconds)
            self._plain_seconds.inc(stats.plain_seconds)
        for seconds in stats.inter_token_seconds:
            self._inter_token.observe(seconds)
        if not stats.proposed_tokens:
            return
        self._drafts.inc(stats.drafts)
        self._draft_tokens.inc(stats.proposed_tokens)
        self._accepted_tokens.inc(stats.accepted_tokens)
        self._proposed(proposer="suffix").inc(stats.guessed_tokens)
        self._accepted(proposer="suffix").inc(stats.accepted_guesses)
        self._proposed(proposer="draft").inc(stats.proposed_tokens - stats.guessed_tokens)
        self._accepted(proposer="draft").inc(stats.accepted_tokens - stats.accepted_guesses)
        self._alternatives.inc(stats.alternatives)
        self._accepted_alternatives.inc(stats.accepted_alternatives)
        for position, accepted in enumerate(stats.accepted_per_position):
            self._accepted_per_position(position=position).inc(accepted)

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None:
        self._requests.observe(request, stats, finish_reason)
        if stats.drafted_tokens:
            domain = self._domains.name(request.domain)
            self._domain_draft_tokens(domain=domain).inc(stats.drafted_tokens)
            self._domain_accepted_tokens(domain=domain).inc(stats.accepted_tokens)

    def _forget_domain(self, name: str) -> None:
        for counter in (self._domain_draft_tokens, self._domain_accepted_tokens):
            counter.forget(name)

    def on_swap(self, event: SwapEvent) -> None:
        """Count a swap; its reason is a label, so it must be a fixed word, not a sentence."""
        self._swaps(reason=event.reason).inc()
        if event.reason == "rollback":
            self._rollbacks.inc()
        self._swap_stall.observe(event.stall_seconds)
