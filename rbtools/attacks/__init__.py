"""Adversarial attacks: pure functions of a model, images, labels and the random numbers of each example.

An attack does not know the device or the seed and does not read or write files. The evaluation projects the
result of an attack onto the ball again and decides in float32 whether the attack succeeded, so an invalid
result cannot count as a success.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbtools.errors import RbError
from rbtools.registry import Registry

if TYPE_CHECKING:
    from rbtools.attacks.base import Attack

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
        "hopskipjump": "rbtools.attacks.hopskipjump:HopSkipJump",
        "spsa": "rbtools.attacks.spsa:SPSA",
        "rays": "rbtools.attacks.rays:RayS",
        "boundary": "rbtools.attacks.boundary:Boundary",
        "surfree": "rbtools.attacks.surfree:SurFree",
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


def named(text: str) -> Attack:
    """The attack with this name, as in metrics, such as `spatial.30.3`. Raises RbError for other strings."""
    name, _, settings = text.partition(".")
    cls = ATTACKS.load(name)
    match = cls.within.pattern().fullmatch(settings)
    if match is None:
        form = ".".join(name.upper() for name in cls.within.fields_in_names())
        raise RbError(f"'{text}' does not contain the settings of its threat. Write {name}.{form}.")
    values = {field: match[field] for field in cls.within.fields_in_names()}
    attack: Attack = cls(**cls.within.settings(match["word"] or "", values))
    return attack
