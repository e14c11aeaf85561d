"""### Watch acceptance

Every five minutes: is a distillation job due by `distill.trigger` of the configuration, because acceptance fell or
the draft missed enough? If so, the asset `hotdraft_job_due` is updated, which starts `hotdraft_distill`. If not,
`start_job` is skipped, and its log says what is wanting.
"""

import json
import os
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset, CronTriggerTimetable, Param, task
from airflow.sdk.exceptions import AirflowSkipException

JOB_DUE = Asset("hotdraft_job_due")

with DAG(
    dag_id="hotdraft_acceptance_watch",
    description="Start a distillation job when acceptance drifts or the draft missed enough",
    doc_md=__doc__,
    tags=["hotdraft"],
    schedule=CronTriggerTimetable("*/5 * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={
        "retries": 2,
        "retry_delay": timedelta(seconds=20),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=2),
        "execution_timeout": timedelta(minutes=10),
    },
    params={
        "config": Param(
            os.environ.get("HOTDRAFT_CONFIG", "configs/smollm2.yaml"),
            type="string",
            minLength=1,
            description="YAML configuration that serves",
        ),
        "folder": Param(
            os.environ.get("HOTDRAFT_FOLDER", str(Path(__file__).resolve().parents[1])),
            type="string",
            minLength=1,
            description="Folder that relative paths, also those in the configuration, count from",
        ),
    },
    user_defined_filters={"quote": shlex.quote},
):
    due = BashOperator(
        task_id="due",
        bash_command=(
            'set -o pipefail; "${HOTDRAFT_BIN:-hotdraft}" replay due --config {{ params.config | quote }} --json'
            " | paste -s -"  # the last line is what is passed on
        ),
        cwd="{{ params.folder }}",
        output_processor=json.loads,
    )

    @task(outlets=[JOB_DUE])
    def start_job(decision, *, outlet_events):
        """Ask for a job, with the reason."""
        if not decision["due"]:
            raise AirflowSkipException(decision["reason"])
        outlet_events[JOB_DUE].extra = decision

    start_job(due.output)
