from collections.abc import Iterator

import openai
import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.http.app import create_app
from hotdraft.serving.metrics.listener import ServingMetrics
from tests.served_app import served
from tests.unit.serving.http.scripted import ScriptedEngine


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[ScriptedEngine, str]]:
    engine = ScriptedEngine()
    config = HotdraftConfig(target="models/tiny-chat")
    app = create_app(engine, config, metrics=ServingMetrics(engine, config.served_model_name))
    with served(app) as url:
        yield engine, url


@pytest.fixture
def engine(server: tuple[ScriptedEngine, str]) -> ScriptedEngine:
    """The served engine, as new."""
    engine, _ = server
    vars(engine).update(vars(ScriptedEngine()))
    return engine


@pytest.fixture
def url(server: tuple[ScriptedEngine, str]) -> str:
    return server[1]


@pytest.fixture
def client(url: str, engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client
