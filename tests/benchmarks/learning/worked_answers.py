"""Answers by rule to the built-in prompts: something regular to say, for models too small to find it out."""

import re
from collections.abc import Callable

from hotdraft.pipeline.traffic.prompts import Prompt

RELATIONS = {
    "greater than": ">", "above": ">", "after": ">", "less than": "<", "below": "<", "before": "<",
    "equal to": "=", "on": "=", "at least": ">=",
}  # fmt: skip
FUNCTIONS = {"average": "AVG", "sum of": "SUM", "highest": "MAX", "lowest": "MIN"}

OPERATIONS: tuple[tuple[str, str, str, Callable[[int, int], int]], ...] = (
    ("percent", "We take {a} percent of {b}.", "{a} * {b} / 100", lambda a, b: a * b // 100),
    ("left|spent|sold|off|ends", "We subtract the smaller from the larger.", "{b} - {a}", lambda a, b: b - a),
    ("together|at first|old|now|average score", "We add both numbers.", "{a} + {b}", lambda a, b: a + b),
    ("each friend|many days|many weeks|speed|tiles", "We divide {b} by {a}.", "{b} / {a}", lambda a, b: b // a),
    ("", "We multiply {a} by {b}.", "{a} * {b}", lambda a, b: a * b),
)
"""By a word of the problem: what is done, and how it is written."""


def worked_answer(prompt: Prompt) -> str:
    text = prompt.messages[-1]["content"]
    return sql_answer(text) if prompt.domain == "text_to_sql" else arithmetic_answer(text)


def arithmetic_answer(text: str) -> str:
    """One operation on the first two numbers: right or not, it looks like a worked answer."""
    a, b = sorted(int(number) for number in re.findall(r"\d+", text)[:2])
    said, written, result = next(
        (said, written, compute(a, b)) for words, said, written, compute in OPERATIONS if re.search(words, text)
    )
    return f"{said}\n{written} = {result}\nThe answer is {result}.".format(a=a, b=b)


def sql_answer(text: str) -> str:
    """The query, in a code block, and what it does."""
    found = re.search(r"Question: (.*)\n", text)
    assert found is not None
    query, said = _query(found[1])
    return f"```sql\n{query};\n```\n\nThis query returns {said}."


def _query(question: str) -> tuple[str, str]:
    if match := re.fullmatch(r"How many (\w+) are there for each (.+)\?", question):
        rows, group = match.groups()
        return f"SELECT {_name(group)}, COUNT(*) FROM {rows} GROUP BY {_name(group)}", f"{rows} by {group}"
    if match := re.fullmatch(r"For each (.+), show the (average|highest|lowest) (.+) of (\w+)\.", question):
        group, function, number, rows = match.groups()
        chosen = f"{FUNCTIONS[function]}({_name(number)})"
        said = f"the {function} {number} by {group}"
        return f"SELECT {_name(group)}, {chosen} FROM {rows} GROUP BY {_name(group)}", said
    if match := re.fullmatch(r"(?:How many (\w+) are there where|Count the (\w+) whose) (.+)[.?]", question):
        rows = match[1] or match[2]
        return f"SELECT COUNT(*) FROM {rows} WHERE {_conditions(match[3])}", f"the number of {rows}"
    if match := re.fullmatch(
        r"What is the (average|sum of|highest|lowest) (.+) (?:of|among|over all) (\w+) (?:where|whose) (.+)\?",
        question,
    ):
        function, number, rows, where = match.groups()
        chosen = f"{FUNCTIONS[function]}({_name(number)})"
        return f"SELECT {chosen} FROM {rows} WHERE {_conditions(where)}", f"the {function} {number} of {rows}"
    if match := re.fullmatch(r"Show the (.+) of the (\d+) (\w+) with the (highest|lowest) (.+)\.", question):
        shown, count, rows, extreme, number = match.groups()
        order = "DESC" if extreme == "highest" else "ASC"
        query = f"SELECT {_names(shown)} FROM {rows} ORDER BY {_name(number)} {order} LIMIT {count}"
        return query, f"the {shown} of {count} {rows}"
    match = re.fullmatch(
        r"\w+ the (.+?) of (?:all |the )?(\w+) (?:where|whose) (.+?)(?:, ordered by (.+))?\.", question
    )
    assert match is not None, question
    shown, rows, where, number = match.groups()
    order = f" ORDER BY {_name(number)}" if number else ""
    return f"SELECT {_names(shown)} FROM {rows} WHERE {_conditions(where)}{order}", f"the {shown} of {rows}"


def _conditions(spoken: str) -> str:
    return " AND ".join(_condition(part) for part in re.split(r" and (?=[a-z ]+ is )", spoken))


def _condition(spoken: str) -> str:
    column, value = spoken.split(" is ", 1)
    for words, sign in RELATIONS.items():
        if value.startswith(words + " "):
            value = value.removeprefix(words + " ")
            return f"{_name(column)} {sign} " + (f"'{value}'" if "-" in value else value)
    return f"{_name(column)} = {value}"


def _names(spoken: str) -> str:
    return ", ".join(_name(part) for part in spoken.split(" and "))


def _name(spoken: str) -> str:
    return spoken.replace(" ", "_")
