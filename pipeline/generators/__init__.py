"""Seeded generators of prompts, all of our own writing: same arguments, same prompts."""

from pipeline.generators.arithmetic import arithmetic
from pipeline.generators.text_to_sql import text_to_sql
from pipeline.generators.varied import varied

__all__ = ["arithmetic", "text_to_sql", "varied"]
