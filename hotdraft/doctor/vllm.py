"""Whether vLLM can serve the configuration, where it is to."""

from collections.abc import Iterator

from hotdraft.doctor.finding import Finding, ok, problem
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.names import ModelError
from hotdraft.serving.vllm.launch import check
from hotdraft.serving.vllm.versions import VllmVersionError, installed


def examine_vllm(config: HotdraftConfig) -> Iterator[Finding]:
    if config.engine.kind != "vllm":
        return
    try:
        check(config)
    except ModelError:
        return  # which is said of the models
    except (ConfigError, VllmVersionError) as error:
        yield problem("vLLM", str(error), "do as it says, or set `engine: {kind: hotdraft}`")
    else:
        yield ok("vLLM", f"{installed()} can serve this pair")
