"""Served figures on their way to MLflow."""

from hotdraft.pipeline.store.curves import ServedCurves
from hotdraft.serving.messages.events import RoundStats, SwapClock, SwapEvent
from hotdraft.serving.messages.request import GenerationRequest, RequestStats


class TrackingListener:
    """Tells the curves what the engine does."""

    def __init__(self, curves: ServedCurves) -> None:
        self._curves = curves
        self._clock = SwapClock()

    def on_round(self, stats: RoundStats) -> None:
        self._curves.count_round(stats.k, stats.new_tokens, stats.seconds, stats.plain_seconds)

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None:
        self._curves.count(
            domain=request.domain,
            requests=1,
            rounds=stats.rounds,
            drafted=stats.drafted_tokens,
            accepted=stats.accepted_tokens,
            accepted_guesses=stats.accepted_guesses,
        )
        if self._clock.is_of_one_version(stats):
            self._curves.served(
                stats.draft_version,
                domain=request.domain,
                drafted=stats.drafted_tokens,
                examined=stats.examined_tokens,
                accepted=stats.accepted_tokens,
            )

    def on_swap(self, event: SwapEvent) -> None:
        self._clock.swapped(event.version)
        self._curves.mark_swap(event.version, reason=event.reason)
