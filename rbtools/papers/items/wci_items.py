"""Items of The Weight-Curvature Index."""

from __future__ import annotations

from rbtools.papers.items.base import Item, Paper

_PLAIN = "train.config.regularize == 'none'"
_ROBUST_CURVES = "train_robust_loss,test_robust_loss,train_robust_error,test_robust_error"
WCI = Paper(
    "Weight-Curvature Index",
    "wci",
    {
        "figure 1": Item(
            "The index along adversarial training: beside robust losses and errors (a), beside their gaps"
            " (b), and under four regularisations on CIFAR-10 (c) and on CIFAR-100 (d).",
            {
                "a": f"rb-plot curves --over epoch --metric wci --right {_ROBUST_CURVES}"
                f' --where "{_PLAIN}{{and_set}}" {{to}}',
                "b": "rb-plot curves --over epoch --metric wci --right robust_loss_gap,robust_error_gap"
                f' --where "{_PLAIN}{{and_set}}" {{to}}',
                "c": "rb-plot curves --over epoch --metric wci {one_set} {to}",
                "d": "rb-plot curves --over epoch --metric wci --where \"dataset == 'cifar100'\" {to}",
            },
            lacks="24 epochs of a small network on digits; the paper: PreActResNet-18, CIFAR-10 and -100;"
            " d needs CIFAR-100, on which SCALE=full trains",
            axes="x: epoch; y: index, with robust loss and error (a) or their gaps (b) on a second axis; c"
            " and d: a line a regularisation, none, cutout, mixup, l2",
            verdict="as in the paper; losses and errors of training and of test images",
        ),
    },
)
