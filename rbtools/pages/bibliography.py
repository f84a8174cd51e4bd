"""BibTeX of the methods that a record's results come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class CitedWork(NamedTuple):
    """A publication. `venue` of a journal ends with a comma and the volume; empty for arXiv alone."""

    key: str
    author: str
    title: str
    year: int
    venue: str = ""
    arxiv: str = ""


_REFERENCES = (
    CitedWork(
        "goodfellow2015explaining",
        "Goodfellow, Ian J. and Shlens, Jonathon and Szegedy, Christian",
        "Explaining and Harnessing Adversarial Examples",
        *(2015, "International Conference on Learning Representations", "1412.6572"),
    ),
    CitedWork(
        "madry2018towards",
        "Madry, Aleksander and Makelov, Aleksandar and Schmidt, Ludwig and Tsipras, Dimitris and Vladu,"
        " Adrian",
        "Towards Deep Learning Models Resistant to Adversarial Attacks",
        *(2018, "International Conference on Learning Representations", "1706.06083"),
    ),
    CitedWork(
        "carlini2017towards",
        "Carlini, Nicholas and Wagner, David",
        "Towards Evaluating the Robustness of Neural Networks",
        *(2017, "IEEE Symposium on Security and Privacy", "1608.04644"),
    ),
    CitedWork(
        "croce2020reliable",
        "Croce, Francesco and Hein, Matthias",
        "Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse Parameter-free Attacks",
        *(2020, "International Conference on Machine Learning", "2003.01690"),
    ),
    CitedWork(
        "croce2020minimally",
        "Croce, Francesco and Hein, Matthias",
        "Minimally Distorted Adversarial Examples with a Fast Adaptive Boundary Attack",
        *(2020, "International Conference on Machine Learning", "1907.02044"),
    ),
    CitedWork(
        "andriushchenko2020square",
        "Andriushchenko, Maksym and Croce, Francesco and Flammarion, Nicolas and Hein, Matthias",
        "Square Attack: A Query-Efficient Black-Box Adversarial Attack via Random Search",
        *(2020, "European Conference on Computer Vision", "1912.00049"),
    ),
    CitedWork(
        "pintor2021fast",
        "Pintor, Maura and Roli, Fabio and Brendel, Wieland and Biggio, Battista",
        "Fast Minimum-norm Adversarial Attacks through Adaptive Norm Constraints",
        *(2021, "Advances in Neural Information Processing Systems", "2102.12827"),
    ),
    CitedWork(
        "rony2019decoupling",
        "Rony, J{\\'e}r{\\^o}me and Hafemann, Luiz G. and Oliveira, Luiz S. and Ben Ayed, Ismail and"
        " Sabourin, Robert and Granger, Eric",
        "Decoupling Direction and Norm for Efficient Gradient-Based L2 Adversarial Attacks and Defenses",
        *(2019, "IEEE Conference on Computer Vision and Pattern Recognition", "1811.09600"),
    ),
    CitedWork(
        "dong2018boosting",
        "Dong, Yinpeng and Liao, Fangzhou and Pang, Tianyu and Su, Hang and Zhu, Jun and Hu, Xiaolin and Li,"
        " Jianguo",
        "Boosting Adversarial Attacks with Momentum",
        *(2018, "IEEE Conference on Computer Vision and Pattern Recognition", "1710.06081"),
    ),
    CitedWork(
        "hendrycks2019benchmarking",
        "Hendrycks, Dan and Dietterich, Thomas",
        "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
        *(2019, "International Conference on Learning Representations", "1903.12261"),
    ),
    CitedWork(
        "robey2022probabilistically",
        "Robey, Alexander and Chamon, Luiz F. O. and Pappas, George J. and Hassani, Hamed",
        "Probabilistically Robust Learning: Balancing Average- and Worst-case Performance",
        *(2022, "International Conference on Machine Learning", "2202.01136"),
    ),
    CitedWork(
        "zhang2019theoretically",
        "Zhang, Hongyang and Yu, Yaodong and Jiao, Jiantao and Xing, Eric P. and El Ghaoui, Laurent and"
        " Jordan, Michael I.",
        "Theoretically Principled Trade-off between Robustness and Accuracy",
        *(2019, "International Conference on Machine Learning", "1901.08573"),
    ),
    CitedWork(
        "wang2020improving",
        "Wang, Yisen and Zou, Difan and Yi, Jinfeng and Bailey, James and Ma, Xingjun and Gu, Quanquan",
        "Improving Adversarial Robustness Requires Revisiting Misclassified Examples",
        *(2020, "International Conference on Learning Representations"),
    ),
    CitedWork(
        "kannan2018adversarial",
        "Kannan, Harini and Kurakin, Alexey and Goodfellow, Ian",
        "Adversarial Logit Pairing",
        *(2018, "", "1803.06373"),
    ),
    CitedWork(
        "dejorge2022make",
        "de Jorge, Pau and Bibi, Adel and Volpi, Riccardo and Sanyal, Amartya and Torr, Philip H. S. and"
        " Rogez, Gr{\\'e}gory and Dokania, Puneet K.",
        "Make Some Noise: Reliable and Efficient Single-Step Adversarial Training",
        *(2022, "Advances in Neural Information Processing Systems", "2202.01181"),
    ),
    CitedWork(
        "cohen2019certified",
        "Cohen, Jeremy and Rosenfeld, Elan and Kolter, J. Zico",
        "Certified Adversarial Robustness via Randomized Smoothing",
        *(2019, "International Conference on Machine Learning", "1902.02918"),
    ),
)
BY_KEY = {reference.key: reference for reference in _REFERENCES}
_AUTO = ("croce2020reliable",)
# The publication of each attack, training method and certificate; those without one are absent.
ATTACKS: dict[str, tuple[str, ...]] = {
    "fgsm": ("goodfellow2015explaining",),
    "pgd": ("madry2018towards",),
    "cw": ("carlini2017towards", "madry2018towards"),
    "mi-fgsm": ("dong2018boosting",),
    "cw-l2": ("carlini2017towards",),
    "apgd-ce": _AUTO,
    "apgd-dlr": _AUTO,
    "apgd-t": _AUTO,
    "fab": ("croce2020minimally",),
    "fab-t": ("croce2020minimally", *_AUTO),
    "fmn": ("pintor2021fast",),
    "ddn": ("rony2019decoupling",),
    "square": ("andriushchenko2020square",),
    "aa": (*_AUTO, "croce2020minimally", "andriushchenko2020square"),
}
TRAININGS: dict[str, tuple[str, ...]] = {
    "pgd": ("madry2018towards",),
    "n-fgsm": ("dejorge2022make",),
    "trades": ("zhang2019theoretically",),
    "mart": ("wang2020improving",),
    "alp": ("kannan2018adversarial",),
    "clp": ("kannan2018adversarial",),
    "cvar": ("robey2022probabilistically",),
    "kl-pgd": ("zhang2019theoretically", "madry2018towards"),
}
CERTIFICATES: dict[str, tuple[str, ...]] = {
    "smooth": ("cohen2019certified",),
}


def of_record(record: Mapping[str, Any]) -> list[CitedWork]:
    """The publications of the methods in a record, each once: of its results, then of its training."""
    keys: dict[str, None] = {}
    for entry in record.get("evals") or ():
        keys |= dict.fromkeys(_of_entry(entry))
    train = record.get("train")
    if isinstance(train, Mapping):
        keys |= dict.fromkeys(TRAININGS.get(str(train.get("method")), ()))
    return [BY_KEY[key] for key in keys]


def _of_entry(entry: Mapping[str, Any]) -> tuple[str, ...]:
    if entry.get("attacks"):  # an ensemble of other attacks than AutoAttack's
        parts = str(entry["attacks"]).split(",")
        return tuple(key for name in parts for key in ATTACKS.get(name.strip(), ()))
    if "attack" in entry:
        return ATTACKS.get(str(entry["attack"]), ())
    if "certificate" in entry:
        return CERTIFICATES.get(str(entry["certificate"]), ())
    if "corruption" in entry or "corruptions" in entry:
        return ("hendrycks2019benchmarking",)
    return ("robey2022probabilistically",) if "noise" in entry else ()


def bibtex(references: Iterable[CitedWork]) -> str:
    """The entries, a blank line between them."""
    entries = []
    for work in references:
        kind = "inproceedings" if work.venue else "misc"
        fields = {"author": work.author, "title": f"{{{work.title}}}", "year": str(work.year)}
        fields |= {"booktitle": work.venue} if work.venue else {}
        fields |= {"eprint": work.arxiv, "archiveprefix": "arXiv"} if work.arxiv else {}
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items()]
        entries.append("\n".join([f"@{kind}{{{work.key},", *lines, "}"]))
    return "\n\n".join(entries)
