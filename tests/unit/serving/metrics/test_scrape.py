"""What Prometheus asks for keeps nobody else waiting."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.job_record import Job
from hotdraft.serving.http.app import create_app
from hotdraft.serving.metrics.listener import ServingMetrics
from hotdraft.serving.metrics.state_metrics import Sources
from tests.served_app import served
from tests.unit.serving.http.scripted import ScriptedEngine


class SlowRecords:
    """On a disk that answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def jobs(self) -> list[Job]:
        self.asked.set()
        self.answers.wait(5)
        return [Job("20260101-000000-abcdef", "loop", "accepted", 1.0, 2.0)]

    def silent_seconds(self, job: Job) -> float:
        return 0.0


def test_requests_are_answered_while_the_records_of_jobs_are_read() -> None:
    engine, records = ScriptedEngine(), SlowRecords()
    metrics = ServingMetrics(engine, "tiny", Sources(jobs=records))
    records.answers.set()
    app = create_app(engine, HotdraftConfig(target="tiny"), metrics=metrics)
    with served(app) as url, ThreadPoolExecutor(1) as scraper:
        records.asked.clear()
        records.answers.clear()
        scrape = scraper.submit(httpx.get, f"{url}/metrics")
        assert records.asked.wait(5)
        assert httpx.get(f"{url}/version", timeout=4).status_code == 200
        assert not scrape.done()
        records.answers.set()
        assert 'hotdraft_jobs{model_name="tiny",state="accepted"} 1.0' in scrape.result().text


class ForbiddenRecords(SlowRecords):
    """In a folder of somebody else's."""

    def jobs(self) -> list[Job]:
        raise PermissionError(13, "Permission denied", "run/jobs/records")


def test_records_of_jobs_that_may_not_be_looked_at_hide_no_other_metric() -> None:
    engine = ScriptedEngine()
    metrics = ServingMetrics(engine, "tiny", Sources(jobs=ForbiddenRecords()))
    with served(create_app(engine, HotdraftConfig(target="tiny"), metrics=metrics)) as url:
        scraped = httpx.get(f"{url}/metrics")
    assert scraped.status_code == 200
    assert "hotdraft_draft_version" in scraped.text
    assert "hotdraft_jobs" not in scraped.text, "what nobody can tell is not 0"
