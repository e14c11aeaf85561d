"""A server that answers as hotdraft does, and a command line in front of it."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import typer
from typer.testing import CliRunner


class FakeHotdraft(BaseHTTPRequestHandler):
    """Answers with k = 4, 5 rounds and 10 tokens a request; accepts 4 of 20 before its swap, then 14."""

    swap_after = 10
    bodies: ClassVar[list[dict]]

    def do_GET(self):
        if self.path == "/v1/models":
            self.answer({"data": [{"id": "fake"}]})
        elif self.path == "/metrics":
            swapped = len(self.bodies) > self.swap_after
            self.answer(
                "# TYPE hotdraft_swaps counter\n"
                f'hotdraft_swaps_total{{model_name="fake",reason="promotion"}} {3 + swapped}\n'
                'hotdraft_swaps_total{model_name="fake",reason="rollback"} 1\n'
                "# TYPE hotdraft_adapters_rejected counter\n"
                f'hotdraft_adapters_rejected_total{{model_name="fake"}} {2 * swapped}\n'
            )
        else:
            self.answer({"status": "ok"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        body["key"] = self.headers["Authorization"]
        if body["messages"][-1]["content"] == "wait":
            time.sleep(60)
        if body["messages"][-1]["content"] == "page":
            return self.answer("<html>a proxy's</html>")
        if body["messages"][-1]["content"] == "null":
            return self.answer({"usage": {"completion_tokens": None}, "hotdraft": {"rounds": 1}})
        if body["messages"][-1]["content"] == "fail":
            return self.answer({"error": {"message": "scripted failure"}}, status=500)
        swapped = len(self.bodies) > self.swap_after
        counts = {"rounds": 5, "drafted_tokens": 20, "accepted_tokens": 14 if swapped else 4, "accepted_guesses": 0}
        return self.answer(
            {"usage": {"completion_tokens": 10}, "hotdraft": {"draft_version": int(swapped), **counts}}
        )

    def answer(self, content, status=200):
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@contextmanager
def fake_server():
    class Handler(FakeHotdraft):
        bodies: ClassVar[list[dict]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", Handler.bodies
    finally:
        server.shutdown()
        server.server_close()


def cli(command, *arguments):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
