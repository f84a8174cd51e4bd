"""Adversarial attacks: pure functions of a model, images, labels and per-example draws.

Each attack is one file and one line here. An attack does not know the device or the seed and uses no files.
The evaluation projects its result onto the budget again and decides success in float32, so that an attack
with an error cannot report a false number.
"""

from __future__ import annotations

from rbtools.registry import Registry

ATTACKS = Registry(
    "attack",
    {
        "fgsm": "rbtools.attacks.fgsm:FGSM",
        "pgd": "rbtools.attacks.pgd:PGD",
        "cw": "rbtools.attacks.cw:CW",
        "mi-fgsm": "rbtools.attacks.mi_fgsm:MIFGSM",
        "cw-l2": "rbtools.attacks.cw_l2:CWL2",
        "apgd-ce": "rbtools.attacks.apgd:APGDCE",
        "apgd-dlr": "rbtools.attacks.apgd:APGDDLR",
        "apgd-t": "rbtools.attacks.apgd:APGDT",
        "fab": "rbtools.attacks.fab:FAB",
        "fab-t": "rbtools.attacks.fab:FABT",
        "fmn": "rbtools.attacks.fmn:FMN",
        "ddn": "rbtools.attacks.ddn:DDN",
        "square": "rbtools.attacks.square:Square",
        "aa": "rbtools.attacks.aa:AutoAttack",
        "noise": "rbtools.attacks.noise:NoiseAttack",
    },
    group="attacks",
)
