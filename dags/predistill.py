"""### Make a draft before there is traffic

Started by hand. `plan` says what it takes, and fails if it does not fit this machine; `train` makes the draft.
Stopped, failed or timed out, `train` is retried and goes on where it was. The folder is announced as the asset
`hotdraft_draft`.
"""

import os
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset, Param, task

DRAFT = Asset("hotdraft_draft")

with DAG(
    dag_id="hotdraft_predistill",
    description="Make a draft from a target by distillation",
    doc_md=__doc__,
    tags=["hotdraft"],
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={
        "retries": 1,
        "retry_delay": timedelta(minutes=1),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=30),
    },
    params={
        "config": Param(
            "configs/predistill-smollm2.yaml",
            type="string",
            minLength=1,
            description="YAML file with target, run_dir and a predistill section",
        ),
        "out": Param(
            "runs/predistilled-draft",
            type="string",
            minLength=1,
            description="New or empty folder that the draft is written to",
        ),
        "prompts": Param(
            [],
            type="array",
            items={"type": "string", "minLength": 1},
            description="JSONL of prompts, folders of text, datasets; none: those of the configuration",
        ),
        "slim": Param(False, type="boolean", description="Leave out what a cut has in common with its target"),
        "folder": Param(
            os.environ.get("HOTDRAFT_FOLDER", str(Path(__file__).resolve().parents[1])),
            type="string",
            minLength=1,
            description="Folder that relative paths, also those in the configuration, count from",
        ),
    },
    user_defined_filters={"quote": shlex.quote},
):
    plan = BashOperator(
        task_id="plan",
        bash_command=(
            '"${HOTDRAFT_BIN:-hotdraft}" predistill --config {{ params.config | quote }}'
            "{% for source in params.prompts %} --prompts {{ source | quote }}{% endfor %} --plan"
        ),
        cwd="{{ params.folder }}",
        do_xcom_push=False,
        execution_timeout=timedelta(hours=1),
    )
    train = BashOperator(
        task_id="train",
        bash_command=(
            '"${HOTDRAFT_BIN:-hotdraft}" predistill --config {{ params.config | quote }}'
            "{% for source in params.prompts %} --prompts {{ source | quote }}{% endfor %}"
            " --out {{ params.out | quote }}{% if params.slim %} --slim{% endif %}"
        ),
        cwd="{{ params.folder }}",
        do_xcom_push=False,
        retries=5,
        execution_timeout=timedelta(days=7),
    )

    @task(outlets=[DRAFT], execution_timeout=timedelta(minutes=10))
    def draft(*, params, outlet_events):
        """Announce the folder."""
        outlet_events[DRAFT].extra = {"folder": str(Path(params["folder"], params["out"]))}

    plan >> train >> draft()
