"""The shape of a record and of an entry of its `evals`, for type checkers: the fields of records/schema.py.

A file may have been written by another program: `records.parse` checks what it depends on, not these types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class Entry(TypedDict, total=False):
    """How one metric was measured; see rb-entry(5)."""

    tool: str
    command: str
    metric: str
    n: int
    split: str
    dataset: str
    indices: str
    train_indices: Any
    class_map: Any
    seed: Any
    draws: str
    init_seed: Any
    verdict_draws: int
    precision: str
    defend: str
    backward: Sequence[str]
    attack: str
    norm: str
    eps: float
    loss: str
    best: Any
    ladder: Any
    screen: Any
    grid: Any
    eot: int
    eot_mean: str
    attacked: Any
    source: Any
    certificate: str
    classifier: Any
    sigma: float
    alpha: float
    select: Any
    noise: str
    gamma: float
    samples: int | str
    definition: str
    denominator: str
    rho: float
    criterion: str
    stopping: Any
    error: Any
    splitting: Any
    particles: int
    moves: int
    runs: int
    keep: Any
    floor: float
    corruption: str
    severity: int
    corruptions: Any
    severities: Any
    archive: Any
    reference: Any
    measure: str
    on: str
    batchnorm: Any
    batches: int
    batch_size: int
    formula: str
    inputs: Any
    estimated: Any
    note: str
    vacuous: bool
    expression: str
    terms: Any
    missing: Any
    within: Any
    compared: int
    preset: str
    records: int
    published: Any
    unit: str
    rounding: float
    key: str
    epoch: int
    threeseed: bool
    value: float | None
    seconds: float
    draws_error: float
    undecided: int
    confirmed: float
    device: str
    environment: Any
    reason: str
    ci95: Sequence[float]
    anytime: Mapping[str, Any]
    interval_of: str
    abstained: int
    mean_radius: float
    estimator: str
    estimate: Any
    quantiles: Any
    area: float
    unreached: int
    se: float
    se_over: Any
    source_model: Any
    ranges: Any
    broken_by: Any
    broken_by_source: Any
    two_phase: Any
    distance: Any
    below_floor: Any
    images: int
    layers: Any
    negative: Any
    tests: Any
    union: Mapping[str, float]
    explained: Any
    contributions: Any
    std: float
    detail: Any
    answers: Mapping[str, Any]
    sanity: Any
    warnings: Sequence[str]
    passes: Mapping[str, float]
    draws_spent: int
    draws_saved: int
    prepared: Any
    threads: int
    stored: Any


class Train(TypedDict, total=False):
    """How the weights were trained; see rb-record(5)."""

    method: str
    seed: int
    epochs: int
    preset: str
    config: dict[str, Any]
    precision: str
    draws: str
    init: Any
    output: str
    tracking: Any
    seconds_per_epoch: float
    passes: Mapping[str, float]
    prepared: Any
    command: str
    device: str
    threads: int
    mps: Any
    processes: int
    trained_on: Any
    batchnorm: Any
    stopped_after: int
    catastrophic_overfitting: Any
    at_chance: Any
    checkpoints: dict[str, Any]
    validation: Any
    history: dict[str, list[Any]]


class Record(TypedDict, total=False):
    """One model under study; see rb-record(5)."""

    schema: int
    arch: dict[str, Any]
    dataset: str
    class_map: Any
    train: Train
    checkpoint: str
    checkpoint_file: str
    recognised: dict[str, Any]
    leaderboard: str
    aggregated: dict[str, Any]
    randomised: bool
    metrics: dict[str, float]
    evals: list[Entry]
    checksums: dict[str, str]
    examples: Mapping[str, Any]
    error: dict[str, Any]
    verify: dict[str, Any]
    rank: int
    band: int
    rank_ci95: Sequence[int]
    ranking: dict[str, Any]
    published: dict[str, Any]
    paired: Mapping[str, Any]
    per_class: Mapping[str, Any]
    pareto: bool
    card: dict[str, Any]
    stored: dict[str, Any]
