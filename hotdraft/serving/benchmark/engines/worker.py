"""One engine in a process of its own: `python -m hotdraft.serving.benchmark.engines.worker ENGINE SETTINGS`.

SETTINGS is JSON; see `serving.benchmark.engines.protocol` for what is said over stdin and stdout. Whatever
libraries print goes to stderr. Standard library only at the top, as a peer's Python may have no torch.
"""

import json
import os
import sys
import traceback
from typing import Any

from hotdraft.serving.benchmark.engines.engine import BenchEngine, Measurable, PeerUnavailable, find_engine
from hotdraft.serving.benchmark.engines.protocol import (
    mode_from_json,
    mode_to_json,
    result_to_json,
    settings_from_json,
)
from hotdraft.serving.benchmark.figures.memory import rss_mb, rss_peak_mb


def main() -> None:
    """Serve requests until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints to stdout from here on prints to stderr

    def reply(**content: Any) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    settings = settings_from_json(json.loads(sys.argv[2]))
    try:
        factory = find_engine(sys.argv[1])
        imported = rss_mb()
        engine = factory(settings)
    except PeerUnavailable as reason:
        reply(unavailable=str(reason))
        return
    modes = {rows: [mode_to_json(mode) for mode in engine.modes(rows)] for rows in settings.concurrency}
    facts = {"engine": engine.name, "version": engine.version, "modes": modes}
    reply(ready={**facts, "rss_imported_mb": imported})
    for line in sys.stdin:
        try:
            reply(**answer(engine, json.loads(line)))
        except Exception as error:  # noqa: BLE001 -- whatever it is, the benchmark tells it and goes on without us
            traceback.print_exc()
            reply(error=f"{type(error).__name__}: {error}")


def answer(engine: BenchEngine, request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request, ready for JSON."""
    if "measure" in request:
        assert isinstance(engine, Measurable), f"{engine.name} has no figures of its own"
        return {"measure": engine.measure(request["measure"], request["rows"])}
    result = engine.run(mode_from_json(request), request["prompts"], request["max_tokens"], request["concurrency"])
    return {"run": result_to_json(result), "rss_mb": rss_mb(), "rss_peak_mb": rss_peak_mb()}


if __name__ == "__main__":
    main()
