"""Algorithms of neural architecture search, which only query the values of architectures.

To add an algorithm, add one file and one line here. `rbtools.search.driver` counts the queries.
"""

from __future__ import annotations

from rbtools.registry import Registry

SEARCHES = Registry(
    "search",
    {
        "random": "rbtools.search.random:RandomSearch",
        "local": "rbtools.search.local_search:LocalSearch",
        "evolution": "rbtools.search.evolution:RegularizedEvolution",
        "bananas": "rbtools.search.bananas:Bananas",
        "nsga2": "rbtools.search.nsga2:NSGA2",
        "darts": "rbtools.search.darts:DARTS",
        "advrush": "rbtools.search.darts:AdvRush",
        "nasi": "rbtools.search.nasi_search:NASISearch",
    },
)
