"""The evaluations of papers: their attacks, measures and composite scores."""

from __future__ import annotations

from rbtools.attacks.presets import PresetAttack
from rbtools.registry import CommandPreset
from rbtools.scoring.terms import ScorePreset, Term


def _of255(*numbers: float) -> tuple[float, ...]:
    return tuple(number / 255 for number in numbers)


_LAST = {"iterate": "last"}
_GRID = _of255(0.1, 0.5, 1, 2, 3, 4, 8)


def _jung2023(**start: str) -> tuple[PresetAttack, ...]:
    steps = {"steps": 40, "relative_step": 0.01 / 0.3, **start, **_LAST}
    return (
        PresetAttack("fgsm", _of255(0.1, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 255)),
        PresetAttack("pgd", _GRID, steps),
        PresetAttack("apgd-ce", _GRID),
        PresetAttack("square", _GRID),
    )


def _in_steps(attack: str, steps: int, **params: float) -> PresetAttack:
    return PresetAttack(attack, _of255(8), {"steps": steps, "step_size": 2 / 255, **params, **_LAST})


_PGD_10, _PGD_20, _AA = _in_steps("pgd", 10), _in_steps("pgd", 20), PresetAttack("aa", _of255(8))

ATTACKS: dict[str, tuple[PresetAttack, ...]] = {
    # Jung et al. 2023 (Neural Architecture Design and Robustness: A Dataset): foolbox's FGSM and PGD, 40
    # steps of 0.01/0.3 of eps; APGD-CE and Square as in AutoAttack. The text gives only the relative step.
    "jung2023": _jung2023(),
    # The paper's text: in equation 2 PGD starts at the image, but foolbox's PGD at a random point.
    "jung2023-text": _jung2023(start="zero"),
    # NAS-RobBench-201: PGD-20 with a step of 2.5*eps/20.
    "nasrobbench201": (
        PresetAttack("fgsm", _of255(3, 8)),
        PresetAttack("pgd", _of255(3, 8), {"steps": 20, **_LAST}),
        _AA,
    ),
    # PRBench: the only step size in the text is 2/255; CW-20 is PGD-20 on the margin.
    "prbench": (_PGD_10, _PGD_20, _in_steps("cw", 20), _AA),
    # Its code (wellzline/PRBenchmark, evaluate.py): the same except for CW's margin.
    "prbench-code": (_PGD_10, _PGD_20, _in_steps("cw", 20, kappa=2.0), _AA),
    # Rice et al. 2020 (robust_overfitting), which the Weight-Curvature Index follows.
    "rice2020": (_PGD_10,),
    # Norms, geometry, patch, colour and few pixels: the sizes of RobustBench in L-infinity and L2, of Croce
    # and Hein 2021 in L1, of Engstrom et al. 2019 for rotations, and usual ones for the others.
    "robust-all": (
        _AA,
        PresetAttack("aa", (0.5,), {"norm": "l2"}),
        PresetAttack("aa", (12.0,), {"norm": "l1"}),
        PresetAttack("spatial", (30.0,)),
        PresetAttack("patch", (0.05,)),
        PresetAttack("color", (0.1,), {"what": "all"}),
        PresetAttack("pixels", (10,)),
    ),
}

MEASURES: dict[str, CommandPreset] = {
    # Jung et al. 2023: means over 10 batches of 256, train and test, fresh and trained networks. Their tool,
    # GradVis, finds the largest eigenvalue of the Hessian of the weights by Lanczos (scipy's eigsh, "LA").
    "jung2023": CommandPreset(
        {"batches": 10, "batch_size": 256, "split": "train,test", "on": "both"},
        {"projections": 1, "wrt": "weight", "solver": "lanczos", "iterations": 100, "tolerance": 1e-3},
        ("jacobian", "hessian"),
    ),
    # NAS-RobBench-201: 50 training images at initialisation, at 3/255 and 8/255 by FGSM and PGD.
    "nasrobbench201": CommandPreset(
        {"batches": 1, "batch_size": 50, "split": "train", "on": "init", "eps": "3,8", "attack": "fgsm,pgd"},
        {"kernel": "twice", "logits": "sum"},
        ("ntk",),
    ),
    # The Weight-Curvature Index attacks as Rice et al. 2020: PGD-10 with steps of 2/255 at 8/255.
    "rice2020": CommandPreset(
        {
            "split": "train",
            "on": "trained",
            "eps": "8",
            "attack": "pgd",
            "attack_steps": 10,
            "step_size": "2",
        },
        methods=("wci",),
    ),
}


_PRBENCH_RATES = {"rho": "0.1,0.05,0.01", "samples": 100}
NOISES: dict[str, CommandPreset] = {
    # PRBench section 4; on MNIST its radii are .3, .35, .4 and .45.
    "prbench": CommandPreset({"gamma": "8/255,0.08,0.1,0.12", "passes": "at-least", **_PRBENCH_RATES}),
    # Its code (wellzline/PRBenchmark, evaluate.py).
    "prbench-code": CommandPreset(
        {"gamma": "0.03,0.08,0.1,0.12", "passes": "above", **_PRBENCH_RATES}, {"truncate": True}
    ),
}


def _prbench(radius: str) -> ScorePreset:
    """The score in PRBench's figure 6, with equal weights and with the generalisation error of PR over all
    images. On MNIST, attacks have distance .3, and the noise radius is .35 instead of .08."""
    prob_acc = f"probacc.uniform.{radius}.0.05"
    return ScorePreset(
        (
            Term("acc"),
            Term("pgd20.8"),
            Term("pr.uniform.0.08"),
            Term(prob_acc),
            Term("ge.pgd20.8", higher=False),
            Term("ge.pr-all.uniform.0.08", higher=False),
            Term("seconds_per_epoch", higher=False),
        ),
        {
            "mnist": {
                "pgd20.8": "pgd20.76.5",
                "pr.uniform.0.08": "pr.uniform.0.35",
                prob_acc: "probacc.uniform.0.3.0.05",
                "ge.pgd20.8": "ge.pgd20.76.5",
                "ge.pr-all.uniform.0.08": "ge.pr-all.uniform.0.35",
            }
        },
    )


# The smallest radius is 8/255 in the text, .03 in the code.
SCORES: dict[str, ScorePreset] = {"prbench": _prbench("0.0313725"), "prbench-code": _prbench("0.03")}
