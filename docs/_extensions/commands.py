"""The directive `command`: what a command of bertflow takes, from its own help."""

from typing import Any

import typer
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from bertflow.cli.main import app as command_line


def command(path: str) -> Any:
    """The command of a path such as "analyze words", as the parser has it."""
    found: Any = typer.main.get_command(command_line)
    for name in path.split():
        found = found.commands[name]
    return found


def spelling(parameter: Any) -> str:
    """How an argument or option is written."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    names = ", ".join(sorted([*parameter.opts, *parameter.secondary_opts], key=len))
    return names if parameter.is_flag else f"{names} {parameter.metavar or 'VALUE'}"


def explanation(parameter: Any) -> str:
    """Its help, and its default where it has one worth saying."""
    said = parameter.help or ""
    if parameter.required:
        return f"{said} Required."
    default = parameter.default
    if isinstance(default, bool | None) or default in ("", (), []) or callable(default):
        return str(said)
    return f"{said} Default: {default}."


class Command(Directive):
    """Help, arguments and options of one command."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """A paragraph, then a list of definitions."""
        found = command(self.arguments[0])
        shown: list[nodes.Node] = [
            nodes.paragraph(text=" ".join(part.split()))
            for part in (found.help or "").split("\n\n")
        ]
        usage = f"bertflow {self.arguments[0]}"
        given = [p for p in found.params if p.param_type_name == "argument"]
        usage += "".join(f" {spelling(parameter)}" for parameter in given) + " [OPTIONS]"
        block = nodes.literal_block(usage, usage, language="text")
        listed = nodes.definition_list(classes=["options"])
        for parameter in found.params:
            if parameter.name == "help" or getattr(parameter, "hidden", False):
                continue
            term = nodes.term("", "", nodes.literal(text=spelling(parameter)))
            text = nodes.definition("", nodes.paragraph(text=explanation(parameter)))
            listed += nodes.definition_list_item("", term, text)
        return [*shown, block, listed]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command", Command)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
