"""Training methods. Each method defines its inner problem and the loss of a batch."""

from __future__ import annotations

from rbtools.registry import Registry

METHODS = Registry(
    "training method",
    {
        "erm": "rbtools.training.erm:ERM",
        "sam": "rbtools.training.sam:SAM",
        "pgd": "rbtools.training.pgd_at:PGDTraining",
        "n-fgsm": "rbtools.training.n_fgsm:NFGSM",
        "trades": "rbtools.training.trades:TRADES",
        "mart": "rbtools.training.mart:MART",
        "alp": "rbtools.training.pairing:ALP",
        "clp": "rbtools.training.pairing:CLP",
        "kl-pgd": "rbtools.training.pgd_at:KLPGD",
        "corruption": "rbtools.training.corruption:CorruptionTraining",
        "erm-dataaug": "rbtools.training.erm_dataaug:ERMDataAug",
        "cvar": "rbtools.training.cvar:CVaR",
        "evar": "rbtools.training.evar:EVaR",
        "at-pr": "rbtools.training.at_pr:ATPR",
        "mixed": "rbtools.training.mixed:Mixed",
        "fgsm-pgi": "rbtools.training.fgsm_pgi:FGSMPGI",
    },
    group="methods",
)
