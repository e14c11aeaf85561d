"""Seeded generators of prompts, all of our own writing: same arguments, same prompts."""

from hotdraft.pipeline.traffic.generators.arithmetic import arithmetic
from hotdraft.pipeline.traffic.generators.text_to_sql import text_to_sql
from hotdraft.pipeline.traffic.generators.varied import varied

__all__ = ["arithmetic", "text_to_sql", "varied"]
