"""Training-free and curvature measures of a network. A measure is called with a model and a batch (images,
labels, random numbers and, if the measure requests them, adversarial images) and returns named numbers."""

from __future__ import annotations

from rbtools.registry import Registry

MEASURES = Registry(
    "measure",
    {
        "ntk": "rbtools.measures.ntk:NTK",
        "jacobian": "rbtools.measures.jacobian:Jacobian",
        "hessian": "rbtools.measures.hessian:Hessian",
        "wci": "rbtools.measures.wci:WCI",
        "naswot": "rbtools.measures.naswot:NASWOT",
        "nasi": "rbtools.measures.grad_norm:NASI",
        "synflow": "rbtools.measures.synflow:SynFlow",
        "snip": "rbtools.measures.snip:SNIP",
        "grad_norm": "rbtools.measures.grad_norm:GradNorm",
        "params": "rbtools.measures.macs:Params",
        "macs": "rbtools.measures.macs:MACs",
        "margin": "rbtools.measures.margin:Margin",
        "sharpness": "rbtools.measures.sharpness:Sharpness",
        "nu": "rbtools.measures.nu:Nu",
        "bound": "rbtools.measures.bound:BoundMeasure",
    },
    apart=("bound",),  # not part of "all": it needs the name of a paper and the inputs of its theorems
    group="measures",
)
