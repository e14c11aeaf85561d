"""Starting a job in a process of its own, which outlives the one that asked for it."""

import logging
import os
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.job_record import Job, Origin
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.processes.supervisor import distill_command, trainer_environment

logger = logging.getLogger(__name__)


def start_job(
    config_path: Path, config: HotdraftConfig, overrides: Mapping[str, Any] | None = None, *, origin: Origin
) -> Job:
    """Start ``hotdraft distill --once`` in a session of its own and return at once.

    It yields the CPU as `config.distill.nice` says, and what it prints is the job's log. Raises
    `JobRunningError` if a job runs in this run directory, and OSError if no process can be started.
    """
    records = JobRecords(config.run_dir)
    job = records.begin(origin)
    try:
        with records.log_path(job.id).open("ab") as log:
            process = subprocess.Popen(
                distill_command(config_path, "--once", "--job", job.id, "--lock", str(job.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=trainer_environment(config, overrides),
                start_new_session=True,
                pass_fds=[job.fileno()],
            )
    except OSError as error:
        job.end("failed", f"its process could not be started: {error}")
        raise
    job.hand_over()
    with suppress(ProcessLookupError):
        niceness = os.getpriority(os.PRIO_PROCESS, 0) + config.distill.nice
        os.setpriority(os.PRIO_PROCESS, process.pid, min(niceness, 19))
    logger.info("job %s runs as process %d", job.id, process.pid)
    threading.Thread(target=process.wait, name="job-reaper", daemon=True).start()
    return job.job
