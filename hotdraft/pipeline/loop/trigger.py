"""When the draft should learn: the trigger of the self-improvement loop.

A job is due once the draft missed enough tokens since the last one. Moderately lazy is best: a
deployment after every step costs more throughput than it gains (Aurora, 2026).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.job_record import Burst, LastJob
from hotdraft.pipeline.loop.recent_rate import Counted, RecentRate
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.index import held_out, may_be_of
from hotdraft.pipeline.replay.sample import tells_of_draft

LONG_TERM = 4
"""Requests that stand for the time before a drift, for each that shows it."""
MOST_PATIENCE = 8
"""Where jobs are refused again and again the draft is as good as it gets, and none comes sooner than this says."""
DRIFT_SPAN = 20
"""How many times the requests that a drift is told by are looked at: one that lasts longer was acted on before."""


@dataclass(frozen=True)
class Decision:
    due: bool
    reason: str
    new_requests: int
    """Training requests recorded since the last job."""
    new_missed: int
    """Output positions of theirs that the draft missed; see `missed`."""
    possible: bool
    """Whether a job would find anything new, and the gate enough to judge by, whether or not one is due."""
    burst: Burst | None = None
    """What the job should be; None: as any."""


class DistillTrigger:
    """Counts what the replay buffer gained since the last job, by its index alone and each request once.

    A job is due once the draft missed enough tokens, once the newest requests fare worse than those before
    them, which asks for no `min_new_requests`, or once enough time has passed. Held-out requests teach nothing
    and are not counted, but no job is due before the gate has its `min_requests` of them, each of another prompt:
    what is new it finds in what comes while the job trains. A trigger that is told of the `last_job` decides as one
    that has been there since; before the first, time counts from the first request.
    """

    def __init__(
        self,
        config: HotdraftConfig,
        buffer: ReplayBuffer,
        last_job: LastJob | None = None,
        clock: Callable[[], float] = time.time,
        held_out: int = 0,
        target_id: str = "",
    ) -> None:
        """`held_out`: prompts for the gate that there are beside those of the buffer. `target_id` is of today's
        target, whose answers alone count if it is known."""
        self._trigger = config.distill.trigger
        self._window, self._max_steps = config.distill.window_requests, config.distill.max_steps
        self._held_out_fraction = config.replay.held_out_fraction
        self._held_out_needed = config.gate.min_requests - held_out
        self._target_id = target_id
        self._buffer = buffer
        self._clock = clock
        self._start(last_job)
        self._read()

    def _start(self, last_job: LastJob | None) -> None:
        self._told = last_job
        """Until its newest request is found."""
        self._last_job = None if last_job is None else last_job.ended_at
        self._first_request: float | None = None
        self._known: set[str] = set()
        """Shards as they were first committed."""
        self._new_requests = self._new_missed = self._others = 0
        self._refused = 0 if last_job is None else last_job.refused_in_a_row
        self._held_out: set[int] = set()
        """Held-out prompts, no more than are needed."""
        self._followed: Burst | None = None
        """The last job, if it was a burst that did not end without hope."""
        self._shift = 0
        """Requests since the fall that it follows, if it does."""
        self._fallen = 0
        """Requests since acceptance fell; 0 once it stands again."""
        self._fell_anew = False
        """Whether no job was for that yet."""
        self._recent = RecentRate(self._trigger.drift_requests)
        self._before = RecentRate(LONG_TERM * self._trigger.drift_requests)

    def decide(self) -> Decision:
        """Read what is new in the buffer and say whether a job is due."""
        self._read()
        drift, missed, waited = self._drift(), self._missed(), self._waited()
        reasons = [*drift, *missed, *waited]
        shortfalls = self._shortfalls(drifts=bool(drift))
        due = not shortfalls and bool(reasons)
        if not reasons:
            needed = math.ceil(self._patience * self._trigger.min_new_rejected)
            shortfalls.append(f"{self._new_missed} of {needed} newly missed tokens")
        reason = "; ".join(reasons) if due else f"waiting: {', '.join(shortfalls)}{self._why_more()}"
        possible = self._new_requests > 0 and len(self._held_out) >= self._held_out_needed
        burst = self._burst() if drift or (self._series and missed) else None
        return Decision(due, reason, self._new_requests, self._new_missed, possible, burst)

    def urgent(self) -> str | None:
        """Why a burst is due, if one is."""
        decision = self.decide()
        return decision.reason if decision.due and decision.burst else None

    def reset(self, taken: Decision, *, new_draft: bool, refused_in_a_row: int = 0) -> None:
        """A job has taken what `taken` counted. Without a new draft the past stays its past.

        For each job `refused_in_a_row` without hope the next waits for twice as much, unless acceptance falls. A
        burst is followed by the next as soon as there is as much again as showed the fall, unless it had no hope.
        """
        self._new_requests -= taken.new_requests
        self._new_missed -= taken.new_missed
        self._others = 0
        self._refused = refused_in_a_row
        self._follow_up(None if refused_in_a_row else taken.burst)
        self._last_job = self._clock()
        self._told = None
        if new_draft:
            self._before.clear()

    def _burst(self) -> Burst | None:
        """Twice as long as the one before it, until it is as long as any job, which is none."""
        steps = self._trigger.drift_steps
        if steps is not None and self._series is not None:
            steps = 2 * self._series.steps
        if steps is None or steps >= self._max_steps:
            return None
        return Burst(steps, min(self._since_fall, self._window))

    def _follow_up(self, burst: Burst | None) -> None:
        self._shift = 0 if burst is None else max(self._since_fall, burst.requests)
        self._followed = burst
        self._fell_anew = self._fell_anew and self._fallen < self._trigger.drift_requests

    @property
    def _series(self) -> Burst | None:
        """The burst that is followed, unless acceptance fell anew and not only for a moment."""
        return None if self._fell_anew and self._fallen >= self._trigger.drift_requests else self._followed

    @property
    def _since_fall(self) -> int:
        return self._shift if self._series else self._fallen

    @property
    def _patience(self) -> float:
        """Times `min_new_requests` and `min_new_rejected` that are waited for."""
        if self._series:
            return min(1.0, self._trigger.drift_requests / self._trigger.min_new_requests)
        return min(2**self._refused, MOST_PATIENCE)

    def _why_more(self) -> str:
        refused = f"{self._patience} times as many, as jobs were refused without hope: {self._refused} in a row"
        others = f"{self._others} that another target answered do not count"
        whys = [why for why, holds in ((others, self._others), (refused, self._patience > 1)) if holds]
        return f" ({'; '.join(whys)})" if whys else ""

    def _shortfalls(self, *, drifts: bool) -> list[str]:
        trigger = self._trigger
        # The first requests of a new kind of traffic are what there is to learn from.
        requests_needed = trigger.drift_requests if drifts else math.ceil(self._patience * trigger.min_new_requests)
        found = [
            f"{have} of {need} {what}"
            for have, need, what in (
                (self._new_requests, requests_needed, "new requests"),
                (len(self._held_out), self._held_out_needed, "held-out prompts"),
                (self._since_fall, self._trigger.drift_requests * drifts, "requests since acceptance fell"),
            )
            if have < need
        ]
        cooled = math.inf if self._last_job is None else self._clock() - self._last_job
        if cooled < trigger.cooldown_seconds:
            found.append(f"{trigger.cooldown_seconds - cooled:.0f} s of cool-down")
        return found

    def _missed(self) -> list[str]:
        if self._new_missed < self._patience * self._trigger.min_new_rejected:
            return []
        return [f"{self._new_missed} newly missed tokens in {self._new_requests} requests"]

    def _waited(self) -> list[str]:
        began = self._first_request if self._last_job is None else self._last_job
        waited = 0.0 if began is None else self._clock() - began
        if self._trigger.every_seconds is None or waited < self._trigger.every_seconds:
            return []
        return [f"{waited:.0f} s since the {'first request' if self._last_job is None else 'last job'}"]

    def _drift(self) -> list[str]:
        """That the newest requests fare worse than those before, by accepted among examined tokens, if so."""
        needed, allowed = self._trigger.drift_requests, self._trigger.drift
        if allowed is None or min(len(self._recent), len(self._before)) < needed:
            return []
        fall = self._before.rate - self._recent.rate
        return [f"acceptance of the newest {needed} requests fell by {fall:.3f}"] if fall > allowed else []

    def _read(self) -> None:
        now = self._clock()  # one that was set back must not have us wait until it is as late again
        self._last_job = self._last_job and min(self._last_job, now)
        self._first_request = self._first_request and min(self._first_request, now)
        news, there = self._buffer.news(self._known)
        told = -1 if self._told is None else pc.index(news["request_id"], self._told.request).as_py()
        if told >= 0 and self._known:  # could not be read at first: what came behind it was counted
            self._start(self._told)
            return self._read()
        if not self._known <= there:  # retention deleted some, and what is left of them is the reservoir's
            rows = self._buffer.rows()
            self._held_out.clear()
            self._hold_out(rows.column("prompt_hash")[rows.may_be_of(self._target_id)])
        self._known = there
        if self._told is not None and told >= 0:
            self._count(news[: told + 1])
            self._new_requests = self._new_missed = self._others = 0  # what came up to here is not new
            self._take_up(self._told)
            self._told = None
        self._count(news[told + 1 :])

    def _count(self, news: pa.Table) -> None:
        counts = may_be_of(news, self._target_id)
        self._others += int((~counts).sum())
        news = news.filter(counts)
        if not len(news):
            return
        if self._first_request is None:
            self._first_request = news["created_at"][0].as_py()
        counts = ~self._hold_out(news["prompt_hash"].to_numpy())
        self._new_requests += int(counts.sum())
        self._new_missed += int(news["missed"].to_numpy()[counts].sum())
        newest = news[-DRIFT_SPAN * (1 + LONG_TERM) * self._trigger.drift_requests :]
        columns = (newest[name].to_pylist() for name in ("accepted", "drafted", "output_tokens"))
        for accepted, examined, tokens in zip(*columns, strict=True):
            self._follow_drift((accepted, examined) if tells_of_draft(examined, tokens) else None)

    def _hold_out(self, prompts: np.ndarray) -> np.ndarray:
        """bool [R]: which of `prompts` are for the gate, which are noted as far as it needs them."""
        for_gate = held_out(prompts, self._held_out_fraction)
        for prompt in prompts[for_gate].tolist():
            if len(self._held_out) >= self._held_out_needed:
                break
            self._held_out.add(prompt)
        return for_gate

    def _follow_drift(self, counted: Counted | None) -> None:
        """One request: its accepted and its examined tokens, if these tell of the draft."""
        if counted is not None and (before := self._recent.push(counted)) is not None:
            self._before.push(before)
        if self._followed:
            self._shift += 1
        if not self._drift():
            self._fallen, self._fell_anew = 0, False
        elif self._fallen:
            self._fallen += 1
        else:  # of the newest so many, some told of it
            self._fallen, self._fell_anew = self._trigger.drift_requests // 2, True

    def _take_up(self, job: LastJob) -> None:
        """Stand as a trigger does that saw the end of `job`."""
        if job.promoted:
            self._before.clear()
        self._follow_up(None if job.refused_in_a_row else job.burst)
