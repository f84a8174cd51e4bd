"""The bounds of NAS-RobBench-201's theory on the networks that it is about, before training.

Residual networks of fcnn (theorems 1 and 2) and rescnn (corollary 1) on images of norm 1: each bound with its
formula, its inputs, and for how many networks it is vacuous. Images are perturbed by PGD in L-infinity, and
rho is the largest distance of two such images after both are brought to norm 1. The paper prints no values.
make reproduce-prbench and make reproduce-wci end with the bounds of their papers.
"""

from __future__ import annotations

from typing import Any

from rbtools.papers import sidebyside as side


def report(records: list[dict[str, Any]], scale: str) -> str:
    """A table for each space."""
    spaces = dict.fromkeys(record["arch"]["space"] for record in records)
    texts = []
    for space in spaces:
        some = [record for record in records if record["arch"]["space"] == space]
        texts.append(f"{space}: {len(some)} networks\n\n{side.theory_text(some)}")
    return "\n".join(texts)
