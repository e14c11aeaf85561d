"""Progress of a simulation: a live bar on a terminal, plain lines in a log."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.simulation.playback import Outcome
from hotdraft.pipeline.simulation.report import WINDOW, acceptance_rate

PLAIN_LINES = 20
"""Lines that a whole simulation prints where there is no terminal, about."""


def latest_job(records: JobRecords, since: float) -> str:
    """One line on what the trainer does, or did last; nothing before its first job `since` that Unix time."""
    job = next(iter(records.jobs()), None)
    if job is None or (job.ended_at is not None and job.ended_at < since):
        return ""
    verdict = job.state if job.version is None else f"v{job.version} {job.state}"
    told = job.reason or job.progress
    return f"{verdict}: {told}" if told else f"a job is {verdict}"


class SimulationProgress(AbstractContextManager["SimulationProgress"]):
    """Shows each outcome as it comes; `trainer_state` returns a line on what the trainer does."""

    def __init__(self, total: int, console: Console, trainer_state: Callable[[], str]) -> None:
        self._total = total
        self._console = console
        self._trainer_state = trainer_state
        self._recent: deque[Outcome] = deque(maxlen=WINDOW)
        self._done = self._failed = self._tokens = 0
        self._started = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task("starting", total=total)
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4)

    def __enter__(self) -> "SimulationProgress":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, outcome: Outcome) -> None:
        """Count one finished request."""
        if self._recent and self._recent[-1].domain != outcome.domain:
            self._recent.clear()
        self._recent.append(outcome)
        self._done += 1
        self._failed += outcome.error is not None
        self._tokens += outcome.tokens
        self._bar.update(self._task, completed=self._done, description=outcome.domain)
        if not self._console.is_terminal and self._done % max(1, self._total // PLAIN_LINES) == 0:
            self._console.print(
                f"{self._done}/{self._total}  {self._figures()}", highlight=False, markup=False, soft_wrap=True
            )

    def _figures(self) -> str:
        if not self._recent:
            return ""
        rate = acceptance_rate(self._recent)
        latest = self._recent[-1]
        figures = [
            latest.domain,
            f"acceptance {'-' if rate is None else format(rate, '.2f')}",
            f"draft v{latest.draft_version}",
            f"{self._tokens / (time.monotonic() - self._started):.0f} tokens/s",
        ]
        if self._failed:
            figures.append(f"{self._failed} failed")
        if trainer := self._trainer_state():
            figures.append(f"trainer: {trainer}")
        return "  ".join(figures)

    def _render(self) -> Group:
        return Group(self._bar, Text(self._figures(), style="dim", overflow="ellipsis", no_wrap=True))
