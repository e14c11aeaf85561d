"""Questions over generated schemas, to be answered with an SQL query."""

import random
from dataclasses import dataclass

from hotdraft.pipeline.traffic.generators.business_areas import AREAS
from hotdraft.pipeline.traffic.generators.filling import distinct
from hotdraft.pipeline.traffic.generators.words import WORDS
from hotdraft.pipeline.traffic.prompts import Prompt

SQL_TYPES = {"key": "INTEGER", "number": "INTEGER", "text": "TEXT", "date": "DATE"}


@dataclass(frozen=True)
class Column:
    name: str
    kind: str
    """One of `SQL_TYPES`."""
    values: tuple[str, ...] = ()
    """What a text column may hold, or the bounds of a number."""

    @property
    def spoken(self) -> str:
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[Column, ...]

    def of(self, kind: str) -> list[Column]:
        return [column for column in self.columns if column.kind == kind]


def parse_column(text: str) -> Column:
    """A column as `AREAS` has it: `price 5-90`, `size small/large`, `born date`, `home city`, `x_id key`."""
    name, domain = text.split()
    if domain in ("date", "key"):
        return Column(name, domain)
    if "/" in domain:
        return Column(name, "text", tuple(domain.split("/")))
    if "-" in domain:
        return Column(name, "number", tuple(domain.split("-")))
    return Column(name, "text", WORDS[domain])


def schema(rng: random.Random) -> list[Table]:
    """Two or three tables of one business area, each with some of its columns."""
    lines = rng.choice(AREAS).split("\n")
    tables = []
    for line in lines[: rng.choice((2, len(lines)))]:
        name, columns = line.split(": ")
        first, *rest = [parse_column(text) for text in columns.split(", ")]
        keys = [column for column in rest if column.kind == "key"]
        numbers = [column for column in rest if column.kind == "number"]
        texts = [column for column in rest if column.kind == "text"]
        dates = [column for column in rest if column.kind == "date"]
        kept = {*keys, *rng.sample(numbers, min(len(numbers), 2)), *rng.sample(texts, 1), *dates}
        tables.append(Table(name, (Column("id", "key"), first, *(item for item in rest if item in kept))))
    return tables


def describe(tables: list[Table], rng: random.Random) -> str:
    """The schema as CREATE TABLE statements or in short form."""
    if rng.random() < 0.5:
        return "\n".join(
            f"CREATE TABLE {table.name} ("
            + ", ".join(f"{column.name} {SQL_TYPES[column.kind]}" for column in table.columns)
            + ");"
            for table in tables
        )
    return "\n".join(f"{table.name}({', '.join(item.name for item in table.columns)})" for table in tables)


def condition(column: Column, rng: random.Random) -> str:
    """A spoken condition on `column`."""
    if column.kind == "text":
        return f"{column.spoken} is '{rng.choice(column.values)}'"
    if column.kind == "number":
        bound = rng.randint(*(int(value) for value in column.values))
        relation = rng.choice(("greater than", "less than", "above", "below", "equal to", "at least"))
        return f"{column.spoken} is {relation} {bound}"
    day = f"20{rng.randint(15, 25)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    return f"{column.spoken} is {rng.choice(('after', 'before', 'on'))} {day}"


def question(table: Table, rng: random.Random) -> str:
    """A question that one query over `table` answers."""
    rows, shown = table.name, table.columns[1].spoken
    details = [column for column in table.columns[2:] if column.kind != "key"]
    number = rng.choice([column for column in details if column.kind == "number"]).spoken
    group = rng.choice([column for column in details if column.kind == "text"]).spoken
    column, other = rng.sample(details, 2)
    where, where_other = condition(column, rng), condition(other, rng)
    extreme = rng.choice(("highest", "lowest"))
    return rng.choice(
        (
            f"List the {shown} of all {rows} whose {where}.",
            f"Find the {shown} and {other.spoken} of {rows} where {where}.",
            f"Show the {shown} of the {rows} whose {where}.",
            f"Show the {shown} of {rows} where {where} and {where_other}.",
            f"How many {rows} are there where {where}?",
            f"Count the {rows} whose {where}.",
            f"What is the average {number} of {rows} whose {where}?",
            f"What is the {extreme} {number} among {rows} where {where}?",
            f"What is the sum of {number} over all {rows} whose {where}?",
            f"Show the {shown} and {number} of the {rng.randint(2, 20)} {rows} with the {extreme} {number}.",
            f"For each {group}, show the {rng.choice(('average', extreme))} {number} of {rows}.",
            f"How many {rows} are there for each {group}?",
            f"List the {shown} of {rows} where {where}, ordered by {number}.",
        )
    )


def sql_task(rng: random.Random) -> str:
    """A schema, a question about one of its tables and the wish for a query."""
    tables = schema(rng)
    return task(describe(tables, rng), question(rng.choice(tables), rng))


def task(described: str, asked: str) -> str:
    return f"Tables:\n{described}\n\nQuestion: {asked}\nWrite the SQL query in a code block, then explain it."


EXAMPLE = [
    {
        "role": "user",
        "content": task("pets(id, name, age)", "List the name of all pets whose age is above 3."),
    },
    {
        "role": "assistant",
        "content": "```sql\nSELECT name FROM pets WHERE age > 3;\n```\n\n"
        "This query returns the name of all pets whose age is above 3.",
    },
]
"""The turn before the question, as an application would have it: it makes a small model's answers regular."""


def text_to_sql(count: int, seed: int) -> list[Prompt]:
    """`count` distinct text-to-SQL prompts over two- and three-table schemas of several business areas."""
    return [
        Prompt("text_to_sql", [*EXAMPLE, {"role": "user", "content": text}])
        for text in distinct(count, f"text_to_sql {seed}", sql_task)
    ]
