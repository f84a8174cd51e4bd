"""The published weights of NAS-Bench-201 and NATS-Bench: one file for each architecture, named by its index.

A file of NAS-Bench-201's archive is called `000123-FULL.pth` and was written by torch.save. A file of
NATS-Bench's full archive of the topology space is called `000123.pickle.pbz2`, a pickle compressed with
bzip2. Both kinds of file contain all training runs of one architecture, for each data set and seed. The
layout of the content is the layout that `nas_201_api` and `nats_bench` (Dong et al.) read: {"full" or the
number of epochs: {"all_results": {(data set, seed): {"net_state_dict": ..., "arch_config": ...}}}}.
"""

from __future__ import annotations

import bz2
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rbtools import unpickle
from rbtools.errors import RbError, near, shown
from rbtools.plain_files import plain

# The longest training first: 200 epochs, which NAS-Bench-201 calls full.
BUDGETS = ("full", "200", "90", "12", "less", "01")
# Unpacked weights are hardly larger than packed ones, unpacked training logs about ten times.
MOST_UNPACKED, ROOM = 100, 2**26


def is_published(raw: object) -> bool:
    """True if a file's content has the layout of these archives."""
    return isinstance(raw, Mapping) and _budget(raw) is not None


def _budget(raw: Mapping[str, Any]) -> str | None:
    """Returns the key of the training run with the most epochs in the file."""
    budgets = (budget for budget in BUDGETS if isinstance(raw.get(budget), Mapping))
    return next((budget for budget in budgets if isinstance(raw[budget].get("all_results"), Mapping)), None)


def run_of(raw: Mapping[str, Any], member: str | None, path: object) -> dict[str, Any]:
    """Returns the run that `member` names ("DATASET" or "DATASET/SEED") as a dict with "state_dict",
    "arch_str" and other keys.

    Without a seed, the run with the lowest seed is returned. Raises RbError if there is no such run, or if
    the file contains results without weights.
    """
    trained = raw[str(_budget(raw))]
    runs: dict[str, Mapping[str, Any]] = {}  # keys: DATASET/SEED
    for key, run in trained["all_results"].items():
        named = isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and type(key[1]) is int
        if named and isinstance(run, Mapping):
            runs[f"{key[0]}/{key[1]}"] = run
    weights = {name: run.get("net_state_dict") for name, run in runs.items()}
    with_weights = {
        name: runs[name] for name, state in weights.items() if isinstance(state, Mapping) and state
    }
    if not with_weights:
        raise RbError(
            f"The file {path} has the results of {len(runs)} trainings without their weights. Download the"
            " archive with the full files (NATS-tss-v1_0-3ffb9-full, or NAS-Bench-201-v1_1-archive)."
        )
    chosen = _chosen(with_weights, member, path)
    run = with_weights[chosen]
    config = run.get("arch_config")
    source = config if isinstance(config, Mapping) and "arch_str" in config else trained
    return {
        "state_dict": run["net_state_dict"],
        "arch_str": source.get("arch_str"),
        "run": chosen,
        "epochs": run.get("epochs"),
    }


def _chosen(runs: Mapping[str, Any], member: str | None, path: object) -> str:
    in_order = sorted(runs, key=lambda name: (name.rpartition("/")[0], int(name.rpartition("/")[2])))
    datasets = list(dict.fromkeys(name.rpartition("/")[0] for name in in_order))
    if member is None:
        if len(datasets) > 1:
            raise RbError(
                f"The file {path} has weights for {len(datasets)} data sets:"
                f" {', '.join(map(shown, datasets))}. Say which are meant, such as --member"
                f" {datasets[0]} or --member {in_order[0]}."
            )
        return in_order[0]
    matches = [name for name in in_order if member in (name, name.rpartition("/")[0])]
    if not matches:
        known = [*datasets, *in_order]
        raise RbError(
            f"The file {path} has no weights for '{member}'.{near(member, known)}"
            f" It has: {', '.join(map(shown, in_order))}."
        )
    return matches[0]


def read_pickle(path: Path) -> Any:
    """Returns the content of a NATS-Bench file, which is a pickle compressed with bzip2. Code in the pickle
    is not run. Raises RbError for any other file."""
    try:
        most = MOST_UNPACKED * path.stat().st_size + ROOM
        with bz2.BZ2File(plain(path)) as stream:
            data = stream.read(most + 1)
        if len(data) > most:
            raise RbError(f"unpacks to more than {MOST_UNPACKED} times its size. No file of NATS-Bench does.")
        return unpickle.published(data)
    except RbError as error:
        raise RbError(f"The file {path} {error}") from None
    except unpickle.Refused as refused:
        raise RbError(
            f"The file {path} holds {refused.name} beside its weights, which was not loaded."
        ) from None
    except (unpickle.Damaged, OSError, EOFError) as error:
        raise RbError(
            f"The file {path} is cut off, damaged or no file of NATS-Bench"
            f" ({type(error).__name__}: {shown(str(error))}). Copy or download it again."
        ) from None
