"""The training settings of papers. If the sources of a paper contradict each other, we chose one."""

from __future__ import annotations

from rbtools.trainer.presets import TrainingPreset

_PGD = {"eps": 8 / 255, "step_size": 2 / 255, "inner_mode": "eval"}
_PAIRED = {"pair": "logits", "distance": "l2", "extra_pass": True}
_SGD = {"momentum": 0.9, "nesterov": False, "weight_decay": 5e-4, "decay": 0.1, "val": 0.0}
PRESETS: dict[str, TrainingPreset] = {
    # Dong and Yang 2020. The learning rate is set once per epoch.
    "nasbench201": TrainingPreset(
        "erm",
        {
            "epochs": 200,
            "batch_size": 256,
            "lr": 0.1,
            "momentum": 0.9,
            "nesterov": True,
            "weight_decay": 5e-4,
            "schedule": "cosine",
            "val": 0.0,
        },
    ),
    # As in its code, which produced the numbers: weight decay 5e-4 (the paper: 1e-4), OneCycle (which
    # overrides the paper's learning rate of .05). The images are attacked before normalisation.
    "nasrobbench201": TrainingPreset(
        "pgd",
        {
            "epochs": 50,
            "batch_size": 256,
            "lr": 0.1,
            "nesterov": False,
            "weight_decay": 5e-4,
            "schedule": "onecycle",
            "val": 0.0,
        },
        {**_PGD, "attack_steps": 7},
    ),
    # As in its text, which does not give the batch size (here MART's) and the inner mode (here advbench's).
    "prbench": TrainingPreset(
        "erm",
        {
            **_SGD,
            "epochs": 100,
            "batch_size": 128,
            "lr": 0.01,
            "weight_decay": 3.5e-3,
            "schedule": "step",
            "milestones": (75, 90),
            "normalize": "none",
        },
        {**_PGD, "attack_steps": 10, "tail": "prl", "tail_step": "image", "pair": "softmax"},
        on={
            "imagenet50": {"epochs": 200},
            "svhn": {"step_size": 1.25 / 255},
            "mnist": {"eps": 0.3, "step_size": 0.1},
        },
        weights={"alp": 0.01, "clp": 0.3},
    ),
    # As in its code (wellzline/PRBenchmark: run.sh, main.py, attack_algorithms.py, utils.py). Steps on SVHN,
    # radius and steps on MNIST, and epochs on ImageNet-50 are from the text, because the code leaves them to
    # the user. It cannot load CINIC-10 and ImageNet-50: they are augmented in the same way as CIFAR.
    "prbench-code": TrainingPreset(
        "erm",
        {
            **_SGD,
            "epochs": 100,
            "batch_size": 256,
            "lr": 0.1,
            "schedule": "step",
            "milestones": (75, 90),
            "augment": ("crop-reflect", "flip"),
            "normalize": "none",
            "resample": "prbench",
        },
        {**_PGD, "attack_steps": 10},
        {
            "pgd": {"inner_mode": "train"},
            "trades": {"extra_pass": False},
            "alp": {"inner_mode": "train", "lambda_": 0.01, **_PAIRED},
            "clp": {"inner_mode": "train", "lambda_": 0.3, **_PAIRED},
            "corruption": {"scale": "unit"},
            "cvar": {"samples": 10},
            "at-pr": {
                "inner_mode": "train",
                "candidates": 10,
                "eps_spread": 0.02,
                "step_min": 2 / 255 - 0.003,
                "step_max": 2 / 255 + 0.003,
                "steps_min": 8,
                "steps_max": 17,
                "settings": "batch",
                "first": "plain",
                "walk_size": "plain",
                "walk_steps": 40,
                "walk_rest": 0.1,
                "fallback": "first",
                "walk_gradient": "keep",
            },
        },
        {"pgd": {"origin": "image"}},  # fgsm_loss in its code
        {
            "imagenet50": {"epochs": 200},
            "tinyimagenet": {"augment": ("crop", "flip")},
            "svhn": {
                "augment": (),
                "step_size": 1.25 / 255,
                "plain_step": 1.25 / 255,
                "step_min": 1.25 / 255 - 0.003,
                "step_max": 1.25 / 255 + 0.003,
            },
            "mnist": {
                "augment": (),
                "eps": 0.3,
                "step_size": 0.1,
                "plain_step": 0.1,
                "step_min": 0.097,
                "step_max": 0.103,
            },
        },
    ),
    # Its algorithm 1, for the theory: plain gradient descent on (1 - beta) clean + beta adversarial logistic
    # loss, one sample per step, each drawn once, with the step size of theorem 1; the output is a uniformly
    # drawn iterate. The theory leaves beta, radius and attack open, and the constant nu / (sqrt(C) e^C) of
    # the step size unknown: the values here are our choice. --norm linf is the attack of the benchmark.
    "nasrobbench201-algorithm1": TrainingPreset(
        "mixed",
        {
            "epochs": 1,
            "batch_size": 1,
            "lr": 1.0,
            "lr_rule": "theorem1",
            "output": "random",
            "momentum": 0.0,
            "nesterov": False,
            "weight_decay": 0.0,
            "schedule": "constant",
            "augment": (),
            "normalize": "none",
            "val": 0.0,
        },
        {**_PGD, "attack_steps": 7, "norm": "sphere"},
    ),
    # Jia et al. 2022 on CIFAR-10, as in its code (jiaxiaojunQAQ/FGSM-PGI): with ten classes, the label has a
    # weight of .6, and the gradient of the attack step is computed in training mode.
    "fgsm-pgi": TrainingPreset(
        "fgsm-pgi",
        {
            **_SGD,
            "epochs": 110,
            "batch_size": 128,
            "lr": 0.1,
            "schedule": "step",
            "milestones": (100, 105),
            "label_smoothing": 4 / 9,
        },
        {
            "eps": 8 / 255,
            "alpha": 1.0,
            "lambda_": 10.0,
            "prior_decay": 0.3,
            "reset": 40,
            "inner_mode": "train",
        },
    ),
    "rice2020": TrainingPreset(
        "pgd",
        {
            **_SGD,
            "epochs": 200,
            "batch_size": 128,
            "lr": 0.1,
            "schedule": "piecewise",
            "milestones": (100, 150),
            "augment": ("crop-reflect", "flip"),
            "clean_pass": True,
        },
        {**_PGD, "attack_steps": 10, "inner_mode": "train"},
        on={"cifar10": {"normalize": "rice"}},
    ),
}
ALIASES = {"wci": "rice2020"}
WITHOUT_TRAINING = {
    "jung2023": "that paper evaluates the networks of NAS-Bench-201. Use --preset nasbench201."
}
