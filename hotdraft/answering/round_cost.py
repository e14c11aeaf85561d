"""What a round costs on this machine, so that an experiment can tell speed from acceptance."""

from collections.abc import Mapping

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.decoding.costs import profile_costs
from hotdraft.serving.engine.load import build_engine


def round_seconds(policies: Mapping[str, HotdraftConfig]) -> dict[str, float]:
    """Seconds of a round of one request that drafts `experiment.k` tokens, as each policy would serve it.

    Measured one after the other, and once for all that are served alike.
    """
    alike: dict[str, float] = {}
    found = {}
    for name, config in policies.items():
        k = config.experiment.k
        engine = config.engine.model_copy(update={"k": k, "num_slots": 1})
        served = config.model_copy(update={"engine": engine})
        key = served.model_dump_json(include={"target", "draft", "dtype", "device", "engine"})
        if key not in alike:
            alike[key] = profile_costs(build_engine(served, None).decoder, [1], k).round_seconds(1, k)
        found[name] = alike[key]
    return found
