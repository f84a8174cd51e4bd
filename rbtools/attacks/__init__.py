"""Adversarial attacks: pure functions of a model, images, labels and the random numbers of each example.

An attack does not know the device or the seed and does not read or write files. The evaluation projects the
result of an attack onto the ball again and decides in float32 whether the attack succeeded, so a wrong result
of an attack cannot count as a success.
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
        "spatial": "rbtools.attacks.spatial:SpatialAttack",
        "patch": "rbtools.attacks.patch:PatchAttack",
        "pixels": "rbtools.attacks.pixels:SparseRS",
        "sigma-zero": "rbtools.attacks.pixels:SigmaZero",
        "color": "rbtools.attacks.color:ColorAttack",
        "blur": "rbtools.attacks.blur:BlurAttack",
        "zoom": "rbtools.attacks.zoom:ZoomAttack",
    },
    group="attacks",
)
