"""Neural architecture search: algorithms that query values of architectures, and never compute them.

Each algorithm is one file and one line here. `rbtools.search.driver` counts its queries.
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
        "advrush": "rbtools.search.advrush:AdvRush",
        "nasi": "rbtools.search.nasi_search:NASISearch",
    },
)
