"""What was found, as a program that anybody can run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from engram.testing.simulator.steps import Program, Send, Setup, Step
from engram.testing.simulator.subject import Subject

_WIDTH = 120


def program_text(subject: Subject, program: Program, *, told: str) -> str:
    """A Python file that runs the program again, with the commands that are in it.

    Names of the app and of invariants are those under which they are found in a module; what is in none is left for
    the reader to fill in.
    """
    program, used = _renumbered(subject, program)
    kinds = sorted({type(step).__name__ for step in program.steps} | {"Program", "Setup"})
    lines = [
        f'"""{_one_line(told)}"""',
        "",
        "from engram.testing.simulator.checking import check_program",
        f"from engram.testing.simulator.steps import {', '.join(kinds)}",
        *_subject_lines(subject),
        "",
        "subject = subject.only(",
        "    [",
        *(f"        ({key!r}, {command.__engram__.name!r}, {command.model_dump_json()!r})," for key, command in used),
        "    ]",
        ")",
        "program = Program(",
        f"    {_setup_text(program.setup)},",
        "    [",
        *(f"        {_step_text(step)}," for step in program.steps),
        "    ],",
        ")",
        "",
        'if __name__ == "__main__":',
        "    check_program(subject, program)",
        "",
    ]
    return "\n".join(lines)


def table(counts: Counter[str], *, seconds: float) -> str:
    """The closing table of many seeds."""
    seeds = counts["seeds"]
    rows = [
        ("seeds", f"{seeds:,}"),
        *((name, f"{count:,}") for name, count in sorted(counts.items()) if name not in ("failures", "seeds")),
        ("seconds", f"{seconds:,.1f}"),
        ("seeds per second", f"{seeds / seconds:,.0f}" if seconds else "-"),
        ("failures", f"{counts['failures']:,}"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}} {value:>16}" for name, value in rows)


def _renumbered(subject: Subject, program: Program) -> tuple[Program, list[tuple[str, Any]]]:
    """The same with only the commands that are sent, in their order."""
    numbers: dict[int, int] = {}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Send):
            number = numbers.setdefault(step.command % len(subject.commands), len(numbers))
            steps.append(step._replace(command=number))
        else:
            steps.append(step)
    used = [subject.commands[number] for number in numbers]
    return Program(program.setup, steps), used or [subject.commands[0]]


def _subject_lines(subject: Subject) -> Iterable[str]:
    if subject.reference:
        module, _, name = subject.reference.partition(":")
        return ["", f"from {module} import {name}{'' if name == 'subject' else ' as subject'}"]
    apps, imports = zip(*(_found(app, f"app{number or ''}") for number, app in enumerate(subject.apps)), strict=True)
    named = [_found(invariant, getattr(invariant, "__name__", "invariant")) for invariant in subject.invariants]
    made = (
        f"subject = Subject(apps=[{', '.join(apps)}], invariants=[{', '.join(name for name, _ in named)}], commands=[])"
    )
    return [
        "from engram.testing.simulator.subject import Subject",
        "",
        *dict.fromkeys([*imports, *(line for _, line in named)]),
        "",
        made,
    ]


def _found(thing: Any, otherwise: str) -> tuple[str, str]:
    """The name of something, and how it is imported."""
    for module_name, module in sorted(sys.modules.items(), key=lambda item: item[0].count(".")):
        for name, value in list(getattr(module, "__dict__", {}).items()):  # a module may be None there
            if value is thing and not name.startswith("_"):
                return name, f"from {module_name} import {name}"
    return otherwise, f"# {otherwise} is in no module: import it, or write it here"


def _setup_text(setup: Setup) -> str:
    usual = Setup()
    fields = [f"{n}={getattr(setup, n)!r}" for n in setup._fields if getattr(setup, n) != getattr(usual, n)]
    return f"Setup({', '.join(fields)})"


def _step_text(step: Any) -> str:
    usual = step._field_defaults
    fields = [f"{n}={getattr(step, n)!r}" for n in step._fields if n not in usual or getattr(step, n) != usual[n]]
    return f"{type(step).__name__}({', '.join(fields)})"


def _one_line(text: str) -> str:
    line = " ".join(text.split()).replace('"', "'").replace("\\", "/")
    return line if len(line) <= _WIDTH - 10 else f"{line[: _WIDTH - 13]}..."
