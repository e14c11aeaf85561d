"""Seeded generators of prompts, all of our own writing: same arguments, same prompts."""

from hotdraft.pipeline.generators.arithmetic import arithmetic
from hotdraft.pipeline.generators.text_to_sql import text_to_sql
from hotdraft.pipeline.generators.varied import varied

__all__ = ["arithmetic", "text_to_sql", "varied"]
