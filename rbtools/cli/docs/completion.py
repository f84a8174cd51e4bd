"""Completion in bash, zsh and fish: the scripts of click, joined for all tools."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click import shell_completion

VARIABLE = "_RB_COMPLETE"
_NAME = "rb-complete"  # placeholder for the tool's name in click's scripts


def _source(shell: type[shell_completion.ShellComplete]) -> str:
    return shell(click.Command(_NAME), {}, _NAME, VARIABLE).source()


def bash(tools: Sequence[str]) -> str:
    """The script for bash, which completes file names if click has no completion."""
    text = _source(shell_completion.BashComplete).replace("-o nosort", "-o nosort -o default")
    return text.strip().replace(f"completion {_NAME}", f"completion {' '.join(tools)}") + "\n"


def zsh(tools: Sequence[str]) -> str:
    text = _source(shell_completion.ZshComplete)
    text = text.replace(f"=zsh_complete {_NAME}", "=zsh_complete ${words[1]}")
    text = text.replace(f"$+commands[{_NAME}]", "$+commands[${words[1]}]")
    return text.strip().replace(_NAME, " ".join(tools)) + "\n"


def fish(tools: Sequence[str]) -> str:
    text = _source(shell_completion.FishComplete)
    text = text.replace(f"(commandline -t) {_NAME}", "(commandline -t) (commandline -opc)[1]")
    *script, last = text.strip().splitlines()
    return "\n".join([*script, *(last.replace(_NAME, tool) for tool in tools)]) + "\n"
