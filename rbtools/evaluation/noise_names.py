"""Names of results on noisy copies of images, such as `pr.uniform.0.08`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rbtools.probabilistic import NOISES
from rbtools.records.metric_name import MetricName
from rbtools.records.name_forms import NUMBER, RATE, NameForm

_TITLES = {
    "pr": "PR",
    "pr-all": "PR (all images)",
    "probacc": "ProbAcc",
    "probacc-all": "ProbAcc (all images)",
    "pfail": "P(fail)",
}
_NOISE = rf"(?P<of>[a-z]+(?:-[a-z_]+)?)(?:\.(?P<norm>l2))?\.(?P<number>{NUMBER})"
_GAMMA = {"gamma": "noise radius γ, on pixels in [0, 1]"}
_RHO = {"rho": "tolerated failure rate ρ"}


class NoiseName(NameForm):
    """The name of a result, with its noise, its radius and, for ProbAcc, the tolerated failure rate."""

    def settings(self, parts: MetricName) -> dict[str, Any]:
        noise, _, kind = parts.of.partition("-")
        if noise not in NOISES or parts.stem == "pfail":  # its samples are not those of PR
            return {}
        value = float(parts.number) * 255  # names round to six digits
        whole = len(parts.number) > 6 and abs(value - round(value)) < 1e-3
        gamma = round(value) / 255 if whole else float(parts.number)
        rate = {"rho": float(parts.rho)} if parts.rho else {}
        norm = {"norm": parts.norm} if parts.norm else {}
        counted = "all" if parts.stem.endswith("-all") else "correct"
        kinds = {noise: kind} if kind else {}
        return {"noise": noise, "gamma": gamma, "denominator": counted, **kinds, **norm, **rate}

    def axes_of(self, parts: MetricName) -> Mapping[str, str]:
        noise = NOISES.of_name(parts.of.partition("-")[0])
        return self.axes if noise is None else {**self.axes, "gamma": noise.axis}

    def quantities(self, parts: MetricName) -> Mapping[str, str]:
        rate = {"rho": f"ρ = {parts.rho}"} if parts.rho else {}
        return {"gamma": f"γ = {_radius(parts.number)}", **rate}


def _title(parts: MetricName) -> str:
    return f"{_TITLES[parts.stem]} {parts.of}{' (L2)' if parts.norm else ''}"


def _radius(text: str) -> str:
    """The radius as a fraction if possible: 0.0313725 becomes 8/255, and 0.08 is unchanged."""
    of255 = float(text) * 255
    return f"{of255:.0f}/255" if len(text) > 6 and abs(of255 - round(of255)) < 1e-3 else text


PR = NoiseName(rf"(?P<stem>pr(?:-all)?)\.{_NOISE}", "copies", _GAMMA, _title)
PROB_ACC = NoiseName(
    rf"(?P<stem>probacc(?:-all)?)\.{_NOISE}\.(?P<rho>{RATE})", "images", {**_GAMMA, **_RHO}, _title
)
PFAIL = NoiseName(rf"(?P<stem>pfail)\.{_NOISE}", "", _GAMMA, _title)
