"""The server's log lines, by a process of its own: logging is the whole process's."""

import json
import subprocess
import sys

import pytest

from hotdraft.pipeline.config.serving import ServerConfig

LOGS = """
import logging
from asgi_correlation_id import correlation_id
from hotdraft.serving.http.logs import configure_logging
configure_logging({log_format!r}, log_requests={log_requests})
correlation_id.set("trace-7")
logging.getLogger("serving.x").info("ended", extra={{"completion_tokens": 3}})
access = logging.getLogger("uvicorn.access")
for path, status in (("/health", 200), ("/health", 503), ("/v1/models", 200)):
    access.info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", path, "1.1", status)
"""


SPAM = """
import logging
from hotdraft.serving.http.logs import configure_logging
configure_logging("text", log_requests=False)
for n in range(300):
    logging.getLogger("asgi_correlation_id").warning("Generated new request ID (%s)", n)
"""


def lines(log_format: str, *, log_requests: bool = True) -> list[str]:
    filled = LOGS.format(log_format=log_format, log_requests=log_requests)
    program = "import logging; logging.basicConfig(level=logging.INFO)" + filled
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stderr.splitlines()


def test_json_has_fields_and_the_request_id() -> None:
    ended, sick, models = map(json.loads, lines("json"))
    assert (ended["request_id"], ended["logger"], ended["message"]) == ("trace-7", "serving.x", "ended")
    assert (ended["level"], ended["completion_tokens"]) == ("INFO", 3)
    assert ended["time"]
    assert (sick["path"], sick["status"]) == ("/health", 503)
    assert (models["method"], models["path"], models["status"]) == ("GET", "/v1/models", 200)


def test_request_ids_that_are_not_taken_fill_no_disk() -> None:
    told = subprocess.run([sys.executable, "-c", SPAM], capture_output=True, text=True, check=True).stderr
    assert 0 < len(told.splitlines()) < 10


def test_requests_have_no_lines_unless_they_are_asked_for() -> None:
    [ended] = lines("text", log_requests=ServerConfig().log_requests)
    assert ended.endswith("ended")


@pytest.mark.parametrize("index", [0, 2])
def test_text_is_one_line_with_the_request_id(index: int) -> None:
    assert "[trace-7]" in lines("text")[index]
