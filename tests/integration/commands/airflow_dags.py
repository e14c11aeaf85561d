"""`python airflow_dags.py OUT [DAG_ID CONF]`, under an interpreter that has Airflow.

Imports the DAGs of AIRFLOW__CORE__DAGS_FOLDER and writes what they are to the file OUT, or runs one to its end
and writes what came of it. Standard library and Airflow only.
"""

import json
import sys
from pathlib import Path
from typing import Any

from airflow import settings
from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetEvent
from airflow.models.dagbundle import DagBundleModel  # noqa: F401 -- a relation of the models below
from airflow.sdk import DAG


def described(dag: DAG) -> dict[str, Any]:
    return {
        "params": {name: dag.params.get_param(name).schema for name in dag.params},
        "schedule": type(dag.timetable).__name__,
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "doc": dag.doc_md,
        "tasks": {
            task.task_id: {
                "retries": task.retries,
                "backoff": task.retry_exponential_backoff,
                "timeout": task.execution_timeout.total_seconds() if task.execution_timeout else None,
                "outlets": [asset.name for asset in task.outlets],
                "after": sorted(task.upstream_task_ids),
            }
            for task in dag.tasks
        },
    }


def run(dag: DAG, conf: dict[str, Any]) -> dict[str, Any]:
    done = dag.test(run_conf=conf)
    events = settings.Session().query(AssetEvent).filter(AssetEvent.source_run_id == done.run_id)
    return {
        "state": done.state,
        "tasks": {task.task_id: task.state for task in done.get_task_instances()},
        "events": {event.asset.name: event.extra for event in events},
    }


def main(out: str, dag_id: str | None = None, conf: str = "{}") -> None:
    bag = DagBag()
    if dag_id is None:
        dags = {name: described(dag) for name, dag in bag.dags.items()}
        result = {"import_errors": bag.import_errors, "dags": dags}
    else:
        result = run(bag.dags[dag_id], json.loads(conf))
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
