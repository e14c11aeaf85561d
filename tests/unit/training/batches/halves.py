"""Recorded requests of which half the batches rehearse, as tests have them drawn."""

from functools import partial

from hotdraft.pipeline.config.learning import DistillConfig
from hotdraft.training.batches.pools import pools_of
from hotdraft.training.batches.replay_data import ReplayDataModule, Selection
from hotdraft.training.batches.stream import Batching

HALVES = DistillConfig(window_requests=8, older_fraction=0.5)


def split(rows, held_out_fraction, validation_requests=0, **options):
    batching = Batching(**{"batch_tokens": 90, "seed": 3} | options)
    selection = Selection(held_out_fraction, validation_requests=validation_requests)
    return ReplayDataModule(rows, partial(pools_of, settings=HALVES), batching, selection)


def stream_of(rows, **options):
    return split(rows, 1e-9, **options).batches
