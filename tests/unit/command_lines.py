"""Command lines as documentation and deployment files show them, parsed by the command line itself."""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from hotdraft.cli import app

CALL = re.compile(r"^\s*(?:\$ )?(?:\w+=\S* )*hotdraft\b(.*)", re.MULTILINE)


def command_lines(text: str) -> Iterator[list[str]]:
    """The words after `hotdraft` of each line of `text` that calls it, continued lines joined."""
    for arguments in CALL.findall(text.replace("\\\n", " ")):
        words = shlex.split(arguments, comments=True)
        yield words[: words.index(">")] if ">" in words else words


def parse(words: Sequence[str]) -> dict[str, Any]:
    """The parameters that `hotdraft WORDS` would run its command with. Raises click's error if it would not run."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    context = None
    while rest and rest[0] in getattr(command, "commands", {}):
        context = command.context_class(command, info_name=command.name, parent=context)
        command = command.commands[rest.pop(0)]
    if not hasattr(command, "commands"):
        return command.make_context(command.name, rest, parent=context).params
    known = {option for parameter in command.params for option in parameter.opts}
    assert known.issuperset(rest), f"{rest} is neither a command nor an option of hotdraft itself"
    return {}
