"""Seeded generators of prompts, all of our own writing: same arguments, same prompts."""

from collections.abc import Callable, Mapping
from functools import partial

from hotdraft.pipeline.traffic.generators.arithmetic import arithmetic
from hotdraft.pipeline.traffic.generators.text_to_sql import text_to_sql
from hotdraft.pipeline.traffic.generators.varied import KINDS, of_kind, varied
from hotdraft.pipeline.traffic.prompts import Prompt

__all__ = ["BUILTIN", "arithmetic", "text_to_sql", "varied"]

BUILTIN: Mapping[str, Callable[[int, int], list[Prompt]]] = {
    **{kind: partial(of_kind, kind) for kind in KINDS},
    "arithmetic": arithmetic,
    "text_to_sql": text_to_sql,
    "varied": varied,
}
"""By name: what makes so many prompts for a seed."""
