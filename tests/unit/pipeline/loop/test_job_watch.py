"""What a person sees of a job that is followed: a bar on a terminal, plain lines in a log."""

import io

from rich.console import Console

from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.pipeline.loop.job_watch import follow_job


def test_a_job_is_followed_by_lines_until_it_ends_where_there_is_no_terminal(records, monkeypatch):
    job = records.begin("loop")
    steps = iter(range(1, 101))

    def a_step_later(_):
        if (step := next(steps, None)) is None:
            job.end("accepted", "better", version=3)
        else:
            job.tell(JobProgress(step, 100, 1 / step, 100.0 - step))

    monkeypatch.setattr("hotdraft.pipeline.loop.job_watch.time.sleep", a_step_later)
    console = Console(file=io.StringIO(), width=80)
    assert follow_job(records, job.id, console).version == 3
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "step 1 of 100, loss 1.000, about 99 s left"
    assert lines[-1] == "step 100 of 100, loss 0.010, being judged"
    assert len(lines) == 21


def test_a_log_says_that_a_job_is_judged_whose_time_ended_before_its_steps(records, monkeypatch):
    job = records.begin("loop")
    told = iter([JobProgress(90, 100, 0.5, 9.0), *[JobProgress(91, 100, 0.5, 0.0)] * 3])

    def later(_):
        if (progress := next(told, None)) is None:
            job.end("rejected", "worse")
        else:
            job.tell(progress)

    monkeypatch.setattr("hotdraft.pipeline.loop.job_watch.time.sleep", later)
    console = Console(file=io.StringIO(), width=80)
    follow_job(records, job.id, console)
    assert console.file.getvalue().splitlines() == [
        "step 90 of 100, loss 0.500, about 9 s left",
        "step 91 of 100, loss 0.500, being judged",
    ]


def test_on_a_terminal_a_job_is_one_bar_that_is_drawn_anew(records, monkeypatch):
    job = records.begin("loop")
    told = iter([JobProgress(25, 100, 0.5, 75.0), JobProgress(100, 100, 0.25, 0.0)])

    def later(_):
        if (progress := next(told, None)) is not None:
            job.tell(progress)
        else:
            job.end("accepted", "better")

    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    monkeypatch.setattr("hotdraft.pipeline.loop.job_watch.time.sleep", later)
    assert follow_job(records, job.id, console).state == "accepted"
    drawn = console.file.getvalue()
    assert drawn.count("\n") == 1, "no line for each news"
    last = drawn.rpartition("\r")[2]
    assert "step 100 of 100, loss 0.250, being judged" in last
