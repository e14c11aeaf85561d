"""The target's answers to the streams of an experiment: made once, whatever policies are compared."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hotdraft.answering.collect import collect
from hotdraft.answering.requests import request_id, temperature_of
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import fingerprint
from hotdraft.pipeline.replay.buffer import ReplayBuffer, sample_from_row
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.traffic.prompts import Prompt
from hotdraft.training.experiment.streams import Stream


class Answers:
    """Recorded answers by prompt."""

    def __init__(self, config: HotdraftConfig, buffer: ReplayBuffer, weights: str) -> None:
        """`weights` are the target's fingerprint."""
        self._config = config
        self._weights = weights
        rows = buffer.load().with_format("numpy")
        self._samples = {sample.request_id: sample for sample in map(sample_from_row, rows)}

    def of(self, prompts: Sequence[Prompt]) -> list[ReplaySample]:
        """In order, without those too long to be answered; a prompt that comes again is a request of its own."""
        seen: Counter[str] = Counter()
        samples = []
        for prompt in prompts:
            temperature = temperature_of(prompt, self._config.experiment.temperature)
            name = request_id(self._config, prompt, temperature, self._weights)
            if name in self._samples:
                again = f"-{seen[name]}" if seen[name] else ""
                samples.append(replace(self._samples[name], request_id=name + again, domain=prompt.domain))
                seen[name] += 1
        return samples


def answers_of(config: HotdraftConfig, folder: Path, streams: Sequence[Stream]) -> Answers:
    """Have all prompts answered that are not yet in `folder`. Raises `CollectError`."""
    experiment = config.experiment
    predistill = config.predistill.model_copy(
        update={"max_tokens": experiment.max_tokens, "temperatures": [experiment.temperature], "draft": None}
    )
    settings = config.apart(folder).model_copy(update={"predistill": predistill})
    buffer = ReplayBuffer.of(settings)
    prompts = [prompt for stream in streams for prompt in (*stream.prompts, *stream.probes, *stream.more)]
    weights = fingerprint(settings.target)
    collect(settings, prompts, buffer, None, weights)
    return Answers(settings, buffer, weights)
