"""Writes the man pages and completions of all commands: `python -m rbtools.cli.docs [FOLDER]`."""

from __future__ import annotations

from pathlib import Path

from rbtools.cli import tools
from rbtools.cli.docs import completion, manual, pages


def files() -> dict[str, str]:
    """Map the path of each generated file (relative to the repository) to its text."""
    of_tools = [list(tools.pages(tools.tool(name))) for name in tools.TOOLS]
    names = [of_tool[0].words for of_tool in of_tools]
    texts = {f"man/{of_tool[0].words}.1": manual.tool_page(of_tool) for of_tool in of_tools}
    for page in pages.pages({one[0].words: one[0].command.get_short_help_str() for one in of_tools}):
        texts[f"man/{page.name}.{page.section}"] = manual.prose_page(page, names)
    texts["completions/rbtools.bash"] = completion.bash(names)
    texts["completions/_rbtools"] = completion.zsh(names)
    texts["completions/rbtools.fish"] = completion.fish(names)
    return texts


def main(folder: str = ".") -> None:
    for path, text in files().items():
        target = Path(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
