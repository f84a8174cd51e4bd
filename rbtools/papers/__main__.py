"""`python -m rbtools.papers NAME` reproduces a paper, or draws its figures and tables."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import click

from rbtools.cli.source import shard
from rbtools.errors import RbError
from rbtools.execution import resources
from rbtools.papers import item_listing, items, needed_files, pipes, recipes, sidebyside
from rbtools.papers.packaged import FULL, SCALES
from rbtools.papers.recipes import Setting

# Maps the name of a paper's figures to the reproductions whose records they show. At full scale, the
# robustness dataset needs its own weights, and its items name the command that makes their records.
FIGURES = {
    "nas-robbench-201": ("nas-robbench-201", "nas-bench-201-robustness"),
    "robustness-dataset": ("nas-bench-201-robustness",),
    "prbench": ("prbench",),
    "wci": ("wci",),
    "theory": ("theory",),
}
NAMES = (
    *(f"reproduce-{name}" for name in (*recipes.NAMES, "search")),
    *(f"figures-{name}" for name in FIGURES),
    "list",
    "show",
)
_SCALE = (
    "The scale of the experiments. small runs wci on your own images, and text runs PRBench at full scale"
    " with the settings in its text instead of its code."
)
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def run(
    name: str, setting: Setting, folder: Path, into: IO[bytes] | None, *, dry: Path | None = None
) -> None:
    """Run the pipe of a recipe. In a dry run, each stage writes to the log `dry` what the stage would
    compute. If RB_STORE and RB_CONFIG are not set, the store is in `folder`, and no configuration is read.
    Raises RbError if a tool fails."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    usual = {"RB_CONFIG": "none", "RB_STORE": str(folder / "store")}
    own = {"RB_DATA": setting.data, "PATH": path, **_ONE_THREAD}
    stages = pipes.Workers(setting.jobs, setting.shard, dry).stages(recipes.pipe(name, setting))
    out = subprocess.DEVNULL if into is None else into.fileno()
    failed = pipes.run(stages, subprocess.DEVNULL, out, {**usual, **os.environ, **own})
    if failed and dry is None:
        raise RbError(f"The recipe {name} failed: {failed}. Run it again to continue from there.")


def reproduce(name: str, setting: Setting, folder: Path) -> None:
    """Run a recipe, which resumes from the store, and print our values next to those of the paper. Each shard
    writes its own file, and the last shard joins the files of all shards and prints the values."""
    needed_files.check(name, setting)
    folder.mkdir(parents=True, exist_ok=True)
    whole, part = folder / f"{name}-{setting.scale}.jsonl", setting.shard
    # Folders and workers may differ between machines.
    recipe = recipes.pipe(name, dataclasses.replace(setting, jobs="1", data="", weights=""))
    records = whole if part is None else pipes.file_of(whole, part, recipe)
    if part is not None:
        records.unlink(missing_ok=True)  # the file of an earlier run must not be joined
    with sidebyside.replacing(records) as stream:
        run(name, setting, folder, stream)
    if part is not None:
        parts = pipes.files_of(whole, part, recipe)
        if lacking := ", ".join(one.name for one in parts if not one.exists()):
            click.echo(f"{records} was written. The last shard joins all files; still missing: {lacking}.")
            return
        # Two shards that end at the same time both join all files.
        with sidebyside.replacing(whole, records.with_suffix(".whole")) as stream:
            pipes.join(parts, stream)
    report(name, setting.scale, whole)


def plan(name: str, sources: Sequence[str], setting: Setting, folder: Path) -> None:
    """Print what recipes would compute. At full scale, this does not need the data, and missing data are
    listed. If all data exist, each stage prints what the store lacks."""
    lacking = [text for source in sources if (text := needed_files.missing(source, setting))]
    if setting.scale in FULL:
        from rbtools.papers import recipe_hours

        for source in sources:
            click.echo(recipe_hours.plan(recipes.pipe(source, setting)))
    if lacking:  # otherwise each record would report it
        click.echo("\n".join(["", *lacking]))
        return
    with tempfile.TemporaryDirectory() as aside:
        log = Path(aside, "log.jsonl")
        for source in sources:
            run(source, setting, folder, None, dry=log)
        click.echo(f"{name}: {pipes.planned(log)}")


def report(name: str, scale: str, records: Path) -> None:
    """Print our values next to those of the paper, and whether each claim of the paper holds."""
    module = sidebyside.comparison(name)
    with records.open("rb") as stream:
        rows = sidebyside.read(stream)
    if hasattr(module, "report"):
        click.echo(module.report(rows, scale))
        return
    made = module.tables(rows, scale)
    texts = [table.text() for table in made.values()]
    click.echo("\n".join([*texts, sidebyside.told(module.claims(rows, scale, made))]))


def _checked_jobs(context: click.Context, option: click.Parameter, text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*|auto|ray(:.+)?", text):
        raise click.BadParameter(
            f"'{text}' is not a number of workers. Expected 1 or more, auto, ray or ray:HOST:PORT."
        )
    return text


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("name", required=False, type=click.Choice(NAMES), metavar="[NAME]")
@click.argument("item", required=False)
@click.option("--scale", type=click.Choice(SCALES), default="mini", help=_SCALE)
@click.option(
    "--reproduced",
    "folder",
    default=str(item_listing.DEFAULT),
    help="The folder for records, figures and tables.",
)
@click.option("--data", default="data", help="The folder with the data sets.")
@click.option("--weights", default=None, help="NAS-Bench-201's weights.  [default: nas-bench-201 in --data]")
@click.option(
    "--jobs",
    default="2",
    callback=_checked_jobs,
    help="Number of simultaneous training runs or figures; auto or ray[:HOST:PORT] is passed to all stages.",
)
@click.option("--shard", "part", default=None, help="Shard I/N to compute, or auto for a Slurm task.")
@click.option("--dataset", default="", help="Your own images for reproduce-wci, as imagefolder:PATH.")
@click.option("--pairs", default=None, help="Space-separated pairs SET/NETWORK of PRBench's tables 9 to 11.")
@click.option("--vits", default=None, help="Comma-separated networks of timm for PRBench's tables 8 and 9.")
@click.option("--vit-s", default=None, help="The file that contains the weights of PRBench's ViT-S.")
@click.option(
    "--table", default=None, help="The file of records from rb-convert for reproduce-search, or - for stdin."
)
@click.option("--runs", default=100, help="The number of runs of each search in reproduce-search.")
@click.option("--where", default=None, help="A condition on the records that reproduce-search uses.")
@click.option("--width", default=items.WIDTH, help="The width of figures in inches.")
@click.option("--only-draw", is_flag=True, help="Draw the existing records, and compute nothing.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only print what each stage would compute and how long it would take. At full scale, this needs no"
    " data and lists what is missing.",
)
@click.option(
    "--records", default=None, type=click.Path(exists=True), help="Compare this record file with the paper."
)
def main(
    name: str | None, item: str | None, folder: str, part: str | None, dry_run: bool, **options: Any
) -> None:
    """Reproduce a paper, or draw its figures and tables. Without NAME, the names of the reproductions are
    listed. The name `list` prints the figures and tables of all papers, and `show ITEM` describes one item,
    such as prbench.figure-2."""
    if name is None:
        click.echo("\n".join(NAMES))
        return
    if (item is None) == (name == "show"):
        raise click.UsageError("show needs the name of an item, such as prbench.figure-2; others take none.")
    fields = {key: options[key] for key in ("scale", "data", "jobs", "dataset", "pairs", "vits", "vit_s")}
    setting = Setting(**fields, weights=options["weights"] or f"{options['data']}/nas-bench-201")
    kind, _, of = name.partition("-")
    # At full scale the records of another paper are only drawn if they exist.
    sources = (of,) if kind == "reproduce" else FIGURES.get(of, ())[: 1 if setting.scale in FULL else None]
    try:
        if part is not None:
            if kind != "reproduce" or of == "search":
                raise click.UsageError("--shard is only for reproduce-NAME, whose records it divides.")
            number, count = shard(part)
            setting = dataclasses.replace(setting, shard=f"{number}/{count}")
        if name == "list":
            click.echo(item_listing.listed())
        elif item is not None:
            click.echo(item_listing.described(item, setting, Path(folder), options["width"]))
        elif of == "search":
            from rbtools.papers import reproduce_search

            if options["table"] is None:
                raise click.UsageError(
                    "no table is given. Create one with rb-convert nasrobbench201 or jung2023, and add"
                    " --table FILE."
                )
            click.echo(reproduce_search.report(options["table"], str(options["runs"]), options["where"]))
        elif options["records"] is not None:
            if kind != "reproduce":
                raise click.UsageError("--records is only for reproduce-NAME. To draw, use --only-draw.")
            report(of, setting.scale, Path(options["records"]))
        elif dry_run:
            plan(name, sources, setting, Path(folder))
        elif kind == "reproduce":
            reproduce(of, setting, Path(folder))
        else:
            from rbtools.papers import figures_of_papers

            for source in () if options["only_draw"] else sources:
                reproduce(source, setting, Path(folder))
            at_once = int(setting.jobs) if setting.jobs.isdigit() else resources.cores()
            figures_of_papers.draw_all(of, setting.scale, Path(folder), options["width"], at_once)
    except RbError as wrong:
        click.echo(f"{name}: {wrong}", err=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also ends the processes of a recipe
    main(prog_name="python -m rbtools.papers")
