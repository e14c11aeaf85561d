"""What serving achieved over time, in MLflow: the served curves, sent by a thread of its own.

While the store is away points wait, and are sent with their own times when it is back.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from mlflow import MlflowClient

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import (
    create_run,
    experiment_id,
    has_run,
    in_one_line,
    log_params,
    open_client,
)
from hotdraft.pipeline.store.curves import ServedCurves
from hotdraft.pipeline.store.lineage import Lineage
from hotdraft.pipeline.store.served import Served
from hotdraft.pipeline.system.local_time import MINUTES, local_time
from hotdraft.pipeline.system.poller import Poller

logger = logging.getLogger(__name__)

LONGEST_RETRY_SECONDS = 60.0


class ServingTracker:
    """Logs served acceptance, speed and draft versions to a run in `tracking.serving_experiment`.

    Metrics, with the number of finished requests as step: `acceptance_rate` (accepted / drafted),
    `acceptance_rate/<domain>`, `mean_acceptance_length` (1 + accepted / rounds),
    `tokens_per_second`, `requests`, `draft_version`. Swaps are steps of `draft_version` and rows
    of the run's note, which links each version to the run that trained it. What a version did in
    service is written to the version and that run, see `pipeline.store.lineage`: every
    `tracking.served_seconds`, after a swap, and at the end.
    """

    def __init__(
        self,
        config: HotdraftConfig,
        *,
        connect: Callable[[HotdraftConfig], MlflowClient] = open_client,
        max_unsent_points: int = 2000,
    ) -> None:
        self._config = config
        self._connect = connect
        self._interval = config.tracking.interval_seconds
        self.curves = ServedCurves(self._interval, max_unsent_points)
        self._told_swaps = 0
        self._told: dict[int, Served] = {}
        self._tell_at = time.monotonic() + config.tracking.served_seconds
        self._client: MlflowClient | None = None
        self._run_id: str | None = None
        self._run_file = config.run_dir / "serving_run"
        self._first_run_id: str | None = None
        """Under which versions are told what they served: under another one it would count twice."""
        self._params_logged = False
        self._started = time.time()
        self._retry_at = 0.0
        self._retry_delay = 0.0
        self._stopping = threading.Event()
        # Two threads: a store that hangs must not make points late.
        end, failing = self.curves.end_interval, "no point of the curves is made"
        self._ticker = Poller(end, self._interval, name="serving-tracker", failing=failing)
        self._sender = threading.Thread(target=self._work, name="serving-tracker-sender", daemon=True)

    @property
    def run_id(self) -> str | None:
        """The serving run; None until the store was first reached."""
        return self._run_id

    def start(self) -> None:
        self._ticker.start()
        self._sender.start()

    def stop(self, patience: float = 10.0) -> None:
        """Send what is left and end the run; gives up after `patience` seconds."""
        self._ticker.stop()
        self._stopping.set()
        if self._sender.is_alive():
            self._sender.join(patience)

    def _work(self) -> None:
        while not self._stopping.wait(self._interval):
            if time.monotonic() >= self._retry_at:
                self._try_to_send()
        self.curves.end_interval()
        self._try_to_send(last=True)

    def _try_to_send(self, *, last: bool = False) -> None:
        try:
            self._send(last)
        except Exception as error:  # noqa: BLE001 -- whatever it is, points wait and the thread goes on
            if not self._retry_delay:
                logger.warning("MLflow cannot be used, points of the curves wait: %s", in_one_line(error))
            self._retry_delay = min(max(2 * self._retry_delay, self._interval), LONGEST_RETRY_SECONDS)
            self._retry_at = time.monotonic() + self._retry_delay
            return
        if self._retry_delay:
            logger.info("MLflow can be used again, points that waited are on their way")
        self._retry_delay = 0.0

    def _send(self, last: bool) -> None:
        if not (self.curves.unsent or self._run_id):
            return
        client = self._client = self._client or self._connect(self._config)
        if self._retry_delay and self._run_id and not has_run(client, self._run_id):  # somebody deleted it
            self._run_id, self._params_logged, self._told_swaps = None, False, 0
        run_id = self._run_id = self._run_id or self._open_run(client)
        self._first_run_id = self._first_run_id or run_id
        if not self._params_logged:
            self._log_params(client, run_id)
        while batch := self.curves.take_unsent():
            try:
                client.log_batch(run_id, metrics=[metric for point in batch for metric in point])
            except BaseException:
                self.curves.put_back(batch)
                raise
        self._tell(client, run_id, self._first_run_id, last)
        if last:
            client.set_terminated(run_id)

    def _open_run(self, client: MlflowClient) -> str:
        config = self._config
        self._end_former(client)
        experiment = experiment_id(client, config, config.tracking.serving_experiment)
        tags = {
            "hotdraft.target": config.target,
            "hotdraft.draft": config.draft or "",
            "hotdraft.k": str(config.engine.k),
        }
        name = f"serving {config.served_model_name}, {local_time(self._started, MINUTES)}"
        run_id = create_run(client, experiment, name, "hotdraft serve", tags, started=self._started)
        with suppress(OSError):  # points are sent all the same
            self._run_file.write_text(run_id)
        return run_id

    def _end_former(self, client: MlflowClient) -> None:
        """One of a server that was killed, or ended while the store was away: it would be under way for ever."""
        try:
            former = self._run_file.read_text()
        except (OSError, UnicodeDecodeError):
            return
        if former and has_run(client, former) and client.get_run(former).info.status == "RUNNING":
            client.set_terminated(former, "KILLED")

    def _log_params(self, client: MlflowClient, run_id: str) -> None:
        config = self._config
        pair = {"target": config.target, "draft": config.draft, "dtype": config.dtype, "device": config.device}
        log_params(client, run_id, config.engine.model_dump(mode="json"), **pair)
        self._params_logged = True

    def _tell(self, client: MlflowClient, run_id: str, first_run_id: str, last: bool) -> None:
        swaps, served = self.curves.so_far()
        swapped = len(swaps) > self._told_swaps
        if not (last or swapped or time.monotonic() >= self._tell_at):
            return
        self._tell_at = time.monotonic() + self._config.tracking.served_seconds
        changed = {version: counts for version, counts in served.items() if counts != self._told.get(version)}
        if not (swapped or changed):
            return
        lineage = Lineage(client, self._config)
        lineage.describe_serving(run_id, swaps, served)
        self._told_swaps = len(swaps)
        for version, counts in changed.items():
            if version:
                lineage.record_served(version, first_run_id, counts)
            self._told[version] = counts


def curves_page(config: HotdraftConfig) -> str | None:
    """Where MLflow's pages have the curves of the serving run that began last, below its address; None without one.

    Raises what a store that is away does.
    """
    client = open_client(config)
    experiment = experiment_id(client, config, config.tracking.serving_experiment)
    newest = client.search_runs([experiment], max_results=1, order_by=["attributes.start_time DESC"])
    return f"/#/experiments/{experiment}/runs/{newest[0].info.run_id}/model-metrics" if newest else None
