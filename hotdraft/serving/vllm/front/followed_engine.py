"""vLLM as the rest of hotdraft sees an engine: what its workers tell becomes events, by a thread."""

import logging
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from prometheus_client import REGISTRY

from hotdraft.pipeline.system.poller import Poller
from hotdraft.serving.graphs.recurring import GraphCounts
from hotdraft.serving.messages.events import EngineListener, RoundStats, SwapEvent
from hotdraft.serving.messages.request import (
    MAX_TEMPERATURE,
    AnswerCounts,
    GenerationRequest,
    RequestStats,
    SamplingParams,
)
from hotdraft.serving.models.runner import Computation
from hotdraft.serving.vllm.journal import UNKNOWN, JournalFollower, engine_of

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
ATTACH_SECONDS = 10.0
"""For a shared folder to show what workers elsewhere have written."""
ANSWER_ID = re.compile(r"(?:\d+_)?(?:(chatcmpl-.+)|(cmpl-.+)-\d+|(resp_.+)_\d+)-[0-9a-f]{8}")
SEVERAL = -1
"""Version of a request that more than one drafted for."""
KEPT_REQUESTS = 4096
"""Finished ones whose counts can be asked for."""


class FollowedEngine:
    """Tells listeners of requests and swaps, and knows the state of each worker of all `engines`."""

    def __init__(
        self, journal: JournalFollower, *, engines: Collection[str], k: int, num_slots: int, max_model_len: int
    ) -> None:
        self.listeners: list[EngineListener] = []
        self.draft_version = 0
        """That serves on all workers; negative while the swapper cannot say."""
        self.k = k
        self.num_slots = num_slots
        self.max_model_len = max_model_len
        self.computations: Mapping[str, Computation] = {}
        self.stalls = 0
        self.graphs = GraphCounts()
        """vLLM's are its own."""
        self.workers: dict[str, dict[str, Any]] = {}
        """What each told last of itself."""
        self._engines = engines
        self.recorded = 0
        """Requests that workers recorded."""
        self.left_out: Counter[str] = Counter()
        """Those that nothing was to be recorded of, by what they asked for."""
        self._journal = journal
        self._failures: Counter[str] = Counter()
        self._requests: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._waiters: list[Callable[[dict[str, Any]], None]] = []
        failing = "the workers' journals cannot be read"
        self._poller = Poller(self._take_news, POLL_SECONDS, name="vllm-journal", failing=failing)

    @property
    def failures(self) -> Mapping[str, int]:
        """By place: `recording` for each worker that ended it, `journal` for what could not be understood."""
        journal = self._failures["journal"] + self._poller.failures + self._journal.broken
        return {"recording": 0, **self._failures, "journal": journal}

    @property
    def dropped(self) -> int:
        """Requests that workers could not record."""
        return sum(facts.get("dropped", 0) for facts in list(self.workers.values()))

    @property
    def problem(self) -> str | None:
        """Why a worker swaps or records nothing."""
        return next((why for facts in list(self.workers.values()) if (why := facts.get("problem"))), None)

    @property
    def num_running(self) -> int:
        return _gauge("vllm:num_requests_running")

    @property
    def num_waiting(self) -> int:
        return _gauge("vllm:num_requests_waiting")

    @property
    def drafting_workers(self) -> set[str]:
        """Those that hold a part of the draft, and so have to take a version up."""
        return {name for name, facts in list(self.workers.items()) if facts.get("has_draft")}

    @property
    def silent_engines(self) -> list[str]:
        """Those of which no worker was heard."""
        return self._without(list(self.workers))

    @property
    def draftless_engines(self) -> list[str]:
        """Those of which no worker, as far as was heard, has a draft to swap."""
        return self._without(self.drafting_workers)

    def start(self) -> None:
        """Know the workers that are attached, then follow them."""
        deadline = time.monotonic() + ATTACH_SECONDS
        self._poller.turn()
        while self.silent_engines and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self._poller.turn()
        if silent := self.silent_engines:
            logger.error("nothing is heard of %s, so that no version is swapped in: see the log there, and whether "
                         "run_dir is one folder for all engines", ", ".join(silent))  # fmt: skip
        self._poller.start()

    def stop(self) -> None:
        self._poller.stop()

    def announce_swap(self, event: SwapEvent) -> None:
        self.draft_version = event.version
        for listener in self.listeners:
            listener.on_swap(event)

    def counts_of(self, request_id: str) -> dict[str, Any] | None:
        """Those of a finished request, by the id that its client was given."""
        return self._requests.get(request_id)

    @contextmanager
    def heard_by(self, hear: Callable[[dict[str, Any]], None]) -> Iterator[None]:
        """Meanwhile `hear` is called with every event of the workers, in this engine's thread."""
        self._waiters.append(hear)
        try:
            yield
        finally:
            self._waiters.remove(hear)

    def _without(self, workers: Collection[str]) -> list[str]:
        return sorted(set(self._engines) - {engine_of(worker) for worker in workers})

    def _take_news(self) -> None:
        for event in self._journal.news():
            try:
                self._take(event)
            except Exception as error:  # those behind it, a swap among them, are heard all the same
                self._failures["journal"] += 1
                if self._failures["journal"] == 1:
                    logger.error("a worker's journal, which is followed on", exc_info=error)

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "attached":
                self.workers[event["worker"]] = event
            case "detached":
                self.workers.setdefault(event["worker"], {}).update(records=False, problem=event["why"])
                self._failures["recording"] += 1
                logger.error("%s records nothing more: %s", event["worker"], event["why"])
            case "swapped":
                self.workers[event["worker"]]["version"] = event["version"]
            case "not_swapped":
                self.workers[event["worker"]]["version"] = event["serves"]
            case "emptied":
                self.draft_version = self.workers[event["worker"]]["version"] = UNKNOWN
            case "finished":
                self._finish(event)
        for hear in list(self._waiters):
            hear(event)

    def _finish(self, told: dict[str, Any]) -> None:
        self.recorded += told["recorded"]
        if told["left_out"] is not None:
            self.left_out[told["left_out"]] += 1
        self.workers.setdefault(told["worker"], {})["dropped"] = told["dropped"]
        answer = outer_id(told["id"])
        others = self._requests.get(answer, {})
        counts = {one.name: told[one.name] for one in fields(AnswerCounts)}
        self._requests[answer] = told | {name: count + others.get(name, 0) for name, count in counts.items()}
        while len(self._requests) > KEPT_REQUESTS:
            self._requests.popitem(last=False)
        request = GenerationRequest(
            told["id"],
            (),
            SamplingParams(
                temperature=min(told["temperature"], MAX_TEMPERATURE), seed=0 if told["seeded"] else None
            ),
            domain=told["domain"],
            record=told["left_out"] != "store",
            client=told["client"],
        )
        stats = RequestStats(
            **counts,
            prompt_tokens=told["prompt_tokens"],
            guessed_tokens=0,
            accepted_guesses=0,
            draft_version=told["draft_version"] if told["one_version"] else SEVERAL,
            queued_seconds=0.0,
            time_to_first_token=None,
            total_seconds=time.time() - told["began"],
        )
        rounds = RoundStats(
            k=self.k,
            drafts=stats.first_examined,
            proposed_tokens=stats.drafted_tokens,
            accepted_tokens=stats.accepted_tokens,
            accepted_per_position=(stats.first_accepted,),
            guessed_tokens=0,
            accepted_guesses=0,
            new_tokens=stats.completion_tokens,
            seconds=0.0,
            draft_version=told["draft_version"],
        )
        for listener in self.listeners:
            listener.on_round(rounds)
            listener.on_finish(request, stats, "stop")


def outer_id(request_id: str) -> str:
    """The id of the answer: vLLM puts a choice's number before it, a prompt's or turn's and eight random digits
    behind it."""
    found = ANSWER_ID.fullmatch(request_id)
    return next(filter(None, found.groups())) if found else request_id


def _gauge(name: str) -> int:
    families = REGISTRY.restricted_registry([name]).collect()
    return int(sum(sample.value for family in families for sample in family.samples))
