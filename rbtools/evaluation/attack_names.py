"""Names of accuracies under attacks, such as `pgd20.8`, `pgd20.l2.0.5` and `spatial.30.3`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rbtools.attacks import ATTACKS
from rbtools.errors import RbError
from rbtools.records.metric_name import MetricName
from rbtools.records.name_forms import NameForm
from rbtools.threats.ball import Ball

# Attacks that have published results but are not in this package, and ensembles of attacks.
_OTHERS = dict(adv="adv", apgd="APGD", autoattack="AutoAttack", boundary="Boundary") | {"kl-pgd": "KL-PGD"}
_OTHERS |= {"external": "external evaluation", "reported": "the authors' evaluation"}
_ENSEMBLE = "ensemble-"


class NamedAttack(NamedTuple):
    """The content of the first word of a name: the attack, the number of its steps (as digits), and its
    threat. `implied` is the word for the threat that applies if the name contains none. `counts` is what the
    number counts: steps or queries."""

    name: str
    steps: str
    title: str
    threat: Any  # a class of `threats`
    implied: str = ""
    counts: str = "steps"

    @property
    def queries(self) -> str:
        """The number of queries as written, or an empty string."""
        return self.steps if self.counts == "queries" else ""


def attack_of(stem: str) -> NamedAttack | None:
    """The attack that the stem of a name (`pgd20`) denotes, or None if there is no such attack."""
    for name in dict.fromkeys((stem, stem.rstrip("0123456789"))):
        steps = stem[len(name) :]
        if name and not steps.startswith("0") and (known := _known(name)):
            return known._replace(steps=steps)
    return None


def _known(name: str) -> NamedAttack | None:
    from rbtools.attacks.curve import SEARCHES

    if name in _OTHERS or name.startswith(_ENSEMBLE):
        return NamedAttack(name, "", _OTHERS.get(name, name), Ball)
    try:
        cls = (SEARCHES if name in SEARCHES else ATTACKS).of_name(name)
    except RbError:  # the module of an installed package fails
        return None
    if cls is None:
        return None
    title = cls.words or (name.upper() if cls.__module__.startswith("rbtools.") else name)
    counts = "queries" if "queries" in cls.__dataclass_fields__ else "steps"
    return NamedAttack(name, "", title, cls.within, cls.implied, counts)


_STEM = re.compile(r"(?P<stem>[a-z](?:(?!-eot\d)[a-z0-9-])*?)(?:-eot(?P<eot>\d+))?")


class AttackName(NameForm):
    """The name of an attack, the word for its threat, and the settings of the threat."""

    def parsed(self, name: str) -> MetricName | None:
        words = name.split(".")
        for place in range(len(words) - 1):
            stem = _STEM.fullmatch(words[place])
            attack = stem and attack_of(stem["stem"])
            match = attack and attack.threat.pattern().fullmatch(".".join(words[place + 1 :]))
            if stem and attack and match:
                threat = ".".join(filter(None, (match["word"], match["before"].rstrip("."))))
                return MetricName(
                    stem["stem"],
                    norm=threat,
                    number=match["number"],
                    fixed=match["after"].lstrip("."),
                    eot=stem["eot"] or "",
                    suffix=match["suffix"] or "",
                    prefixes=tuple(words[:place]),
                    form=self,
                )
        return None

    def attacked(self, parts: MetricName) -> bool:
        return True

    def read(self, parts: MetricName) -> tuple[NamedAttack, str, dict[str, str]]:
        """The attack, the word for the threat (even if the name omits it), and its settings as strings."""
        attack = attack_of(parts.stem)
        assert attack is not None
        words = parts.norm.split(".") if parts.norm else []
        word = words.pop(0) if words and words[0] in attack.threat.words else attack.implied
        settings = ".".join(filter(None, (*words, parts.number, parts.fixed)))
        match = attack.threat.pattern().fullmatch(settings)
        values = {} if match is None else {name: match[name] for name in attack.threat.fields_in_names()}
        return attack, word, values

    def settings(self, parts: MetricName) -> dict[str, Any]:
        attack, word, values = self.read(parts)
        said: dict[str, Any] = {"attack": attack.name, **attack.threat.settings(word, values)}
        said |= {attack.counts: int(attack.steps)} if attack.steps else {}
        return said | ({"eot": int(parts.eot)} if parts.eot else {})

    def axes_of(self, parts: MetricName) -> Mapping[str, str]:
        attack, word, _ = self.read(parts)
        queries = {"queries": "queries"} if attack.queries else {}
        return {attack.threat.strength: attack.threat.axis(word), **queries}

    def quantities(self, parts: MetricName) -> Mapping[str, str]:
        attack, word, values = self.read(parts)
        strength = attack.threat.strength
        others = {name: value for name, value in values.items() if name != strength}
        said = {strength: attack.threat.said(word, {strength: parts.number})}
        said |= {"": attack.threat.said(word, others)} if others else {}
        return said | ({"queries": f"{attack.queries} queries"} if attack.queries else {})

    def heading(self, parts: MetricName, without: str | None = None) -> str:
        attack, word, _ = self.read(parts)
        means = f" (means over {parts.eot} draws)" if parts.eot else ""
        means = " (one draw)" if parts.eot == "1" else means
        beside = attack.threat.beside("" if word == attack.name else word)
        count = f"-{attack.steps}" if attack.steps and not attack.queries else ""
        title = f"{attack.title}{count}{means}{beside}"
        title += f" {parts.suffix}".replace("_", " ").rstrip()
        return ", ".join([title, *(text for name, text in self.quantities(parts).items() if name != without)])


ATTACKED = AttackName("", "images")
