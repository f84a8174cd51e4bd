"""Training methods: each gives the loss of one batch and says what its inner problem is.

One file a method, one line here. The engine owns data, augmentation, schedule, checkpoints, time.
"""

from __future__ import annotations

from rbtools.registry import Registry

METHODS = Registry(
    "training method",
    {
        "erm": "rbtools.training.erm:ERM",
        "pgd": "rbtools.training.pgd_at:PGDTraining",
        "trades": "rbtools.training.trades:TRADES",
        "mart": "rbtools.training.mart:MART",
        "alp": "rbtools.training.alp:ALP",
        "clp": "rbtools.training.clp:CLP",
        "kl-pgd": "rbtools.training.kl_pgd:KLPGD",
        "corruption": "rbtools.training.corruption:CorruptionTraining",
        "erm-dataaug": "rbtools.training.erm_dataaug:ERMDataAug",
        "cvar": "rbtools.training.cvar:CVaR",
        "evar": "rbtools.training.evar:EVaR",
        "at-pr": "rbtools.training.at_pr:ATPR",
        "mixed": "rbtools.training.mixed:Mixed",
    },
)
