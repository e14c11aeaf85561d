from collections.abc import Iterator

import openai
import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.http.app import create_app
from hotdraft.serving.metrics.listener import ServingMetrics
from tests.unit.serving.http.scripted import ScriptedEngine, served


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[ScriptedEngine, str, ServingMetrics]]:
    engine = ScriptedEngine()
    config = HotdraftConfig(target="models/tiny-chat")
    metrics = ServingMetrics(engine, config.served_model_name)
    app = create_app(engine, config, metrics=metrics)
    with served(app) as url:
        yield engine, url, metrics


@pytest.fixture
def engine(server: tuple[ScriptedEngine, str, ServingMetrics]) -> ScriptedEngine:
    """The served engine, as new."""
    engine, *_ = server
    vars(engine).update(vars(ScriptedEngine()))
    return engine


@pytest.fixture
def url(server: tuple[ScriptedEngine, str, ServingMetrics]) -> str:
    return server[1]


@pytest.fixture
def metrics(server: tuple[ScriptedEngine, str, ServingMetrics]) -> ServingMetrics:
    return server[2]


@pytest.fixture
def client(url: str, engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client
