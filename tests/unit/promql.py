"""Enough of PromQL's grammar to say which metrics, label matchers and grouping labels an expression names."""

import re
from dataclasses import dataclass

_TOKENS = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\])*")
    |(?P<duration>\[[^\]]*\]|\b\d+(?:ms|[smhdwy])\b)
    |(?P<number>\b\d+(?:\.\d+)?\b)
    |(?P<word>[A-Za-z_:][A-Za-z0-9_:]*)
    |(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^(){},=<>])
    |(?P<space>\s+)""",
    re.VERBOSE,
)
_OPERATORS = {"and", "or", "unless", "offset", "bool"}
_LABEL_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}


@dataclass(frozen=True)
class Names:
    metrics: dict[str, set[str]]
    """Labels that each metric is selected by."""
    grouped: set[str]
    """Labels that series are put together by."""


def names_of(expression: str) -> Names:
    """Raises ValueError for what is no PromQL that it knows."""
    tokens = _tokens(expression)
    metrics: dict[str, set[str]] = {}
    grouped: set[str] = set()
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        after = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if kind != "word" or text in _OPERATORS:
            at += 1
        elif text in _LABEL_LISTS and after == "(":
            end = tokens.index(("sign", ")"), at)
            grouped |= {word for kind, word in tokens[at + 2 : end] if kind == "word"}
            at = end + 1
        elif after == "(" or after in _LABEL_LISTS:  # a function or an aggregation
            at += 1
        else:
            labels = metrics.setdefault(text, set())
            at += 1
            if after == "{":
                end = tokens.index(("sign", "}"), at)
                labels |= {word for kind, word in tokens[at + 1 : end] if kind == "word"}
                at = end + 1
    return Names(metrics, grouped)


def _tokens(expression: str) -> list[tuple[str, str]]:
    found = []
    at = 0
    while at < len(expression):
        match = _TOKENS.match(expression, at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"not understood at {expression[at : at + 20]!r} of {expression!r}")
        if match.lastgroup != "space":
            found.append((match.lastgroup, match.group()))
        at = match.end()
    return found
