"""### Distil what was recorded

Every night if anything new was recorded, and whenever the acceptance watch finds a job due: train an adapter, let
the gate judge it, promote it if it is better. While the loop is off (`hotdraft loop off`) only by hand.
A candidate that the gate rejects is no failure, nor one that passes while the champion is pinned: `champion` is
skipped, and its log says why. A job that fails or is stopped is retried and goes on from its last checkpoint.
"""

import json
import os
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset, AssetOrTimeSchedule, CronTriggerTimetable, Param, task
from airflow.sdk.exceptions import AirflowSkipException

JOB_DUE = Asset("hotdraft_job_due")
CHAMPION = Asset("hotdraft_champion")

with DAG(
    dag_id="hotdraft_distill",
    description="Distil recorded traffic into a new adapter, judge it, promote it if it is better",
    doc_md=__doc__,
    tags=["hotdraft"],
    schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("0 3 * * *", timezone="UTC"), assets=[JOB_DUE]),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={
        "retries": 2,
        "retry_delay": timedelta(minutes=1),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=30),
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

    @task.short_circuit
    def worth_a_job(decision, *, dag_run):
        """On the watch's word if it holds still; by the clock or by hand if there is anything new.

        Only by hand while the loop is off.
        """
        print(decision["reason"])
        if not decision["loop_enabled"] and dag_run.run_type != "manual":
            return False
        return decision["due" if dag_run.run_type == "asset_triggered" else "possible"]

    job = BashOperator(
        task_id="job",
        bash_command=(
            'set -o pipefail; "${HOTDRAFT_BIN:-hotdraft}" distill --config {{ params.config | quote }}'
            " --once --json | paste -s -"
        ),
        cwd="{{ params.folder }}",
        output_processor=json.loads,
        execution_timeout=timedelta(hours=6),
    )

    @task(outlets=[CHAMPION])
    def champion(result, *, outlet_events):
        """Announce the version that serves from now on, if one was promoted."""
        if not result["promoted"]:
            raise AirflowSkipException(f"version {result['version']} was not promoted: {result['reason']}")
        outlet_events[CHAMPION].extra = {name: result[name] for name in ("version", "reason", "run_id")}

    worth_a_job(due.output) >> job
    champion(job.output)
