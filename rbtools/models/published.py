"""The published weights of NAS-Bench-201 and NATS-Bench, with one file for each architecture, whose name
contains the index.

`000123-FULL.pth` of NAS-Bench-201's archive was written by torch.save, and `000123.pickle.pbz2` of
NATS-Bench's full archive of the topology space is a pickle compressed with bzip2. Both contain all training
runs of one architecture. The content has the layout that `nas_201_api` and `nats_bench` (Dong et al.) read:
{"full" or the number of epochs: {"all_results": {(data set, seed): {"net_state_dict": ..., "arch_config":
...}}}}.
"""

from __future__ import annotations

import bz2
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rbtools.errors import RbError, near, shown
from rbtools.models import unpickle
from rbtools.plain_files import plain

# The longest training first: 200 epochs, which NAS-Bench-201 calls full.
BUDGETS = ("full", "200", "90", "12", "less", "01")
# Unpacked weights are hardly larger than packed ones, unpacked training logs about ten times.
MOST_UNPACKED, ROOM = 100, 2**26


def is_published(raw: object) -> bool:
    return isinstance(raw, Mapping) and _budget(raw) is not None


def _budget(raw: Mapping[str, Any]) -> str | None:
    budgets = (budget for budget in BUDGETS if isinstance(raw.get(budget), Mapping))
    return next((budget for budget in budgets if isinstance(raw[budget].get("all_results"), Mapping)), None)


def run_of(raw: Mapping[str, Any], member: str | None, path: object) -> dict[str, Any]:
    """Returns the run that `member` names ("DATASET" or "DATASET/SEED"), by default with the lowest seed.

    The keys are "state_dict", "arch_str", "run" and "epochs". Raises RbError if there is no such run, or if
    the file contains results without weights.
    """
    trained = raw[str(_budget(raw))]
    runs: dict[str, Mapping[str, Any]] = {}  # keys: DATASET/SEED
    for key, run in trained["all_results"].items():
        named = isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and type(key[1]) is int
        if named and isinstance(run, Mapping):
            runs[f"{key[0]}/{key[1]}"] = run
    with_weights = {
        name: run
        for name, run in runs.items()
        if isinstance(run.get("net_state_dict"), Mapping) and run["net_state_dict"]
    }
    if not with_weights:
        raise RbError(
            f"The file {path} has the results of {len(runs)} training runs, but no weights. Download the"
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
                f" {', '.join(map(shown, datasets))}. Select one with --member {datasets[0]},"
                f" or one training run with --member {in_order[0]}."
            )
        return in_order[0]
    matches = [name for name in in_order if member in (name, name.rpartition("/")[0])]
    if not matches:
        known = [*datasets, *in_order]
        raise RbError(
            f"The file {path} has no weights for '{member}'.{near(member, known)}"
            f" It has weights for: {', '.join(map(shown, in_order))}."
        )
    return matches[0]


def read_pickle(path: Path) -> Any:
    """Returns the content of a NATS-Bench file without running its code. Raises RbError for other files."""
    try:
        most = MOST_UNPACKED * path.stat().st_size + ROOM
        with bz2.BZ2File(plain(path)) as stream:
            data = stream.read(most + 1)
        if len(data) > most:
            raise RbError(f"unpacks to more than {MOST_UNPACKED} times its size. No NATS-Bench file does.")
        return unpickle.published(data)
    except RbError as error:
        raise RbError(f"The file {path} {error}") from None
    except unpickle.Refused as refused:
        raise RbError(
            f"The file {path} contains {refused.name} in addition to its weights, so it was not loaded."
        ) from None
    except (unpickle.Damaged, OSError, EOFError) as error:
        raise RbError(
            f"The file {path} is truncated, damaged or not a NATS-Bench file"
            f" ({type(error).__name__}: {shown(str(error))}). Copy or download it again."
        ) from None
