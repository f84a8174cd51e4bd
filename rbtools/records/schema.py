"""The fields of a record: one table each for the record, its `train` section and an entry of `evals`.

From these tables derive: whether two entries are comparable (`results.protocol`), the fields of
merged records, of means over corruptions and of generalisation errors, what the leaderboard page stores once
for many records, and the lists in rb-record(5) and rb-entry(5).

A result, a cost or a label is named in two places: here, and where it is produced. What a spec sets is
protocol, and what it finds is not (tests/evaluation/test_keys.py holds it). A protocol field that does not
follow from the fields of the result's key is added to the key, too (`Spec.column`), else the store gives
entries without it. Earlier records and stores lack a new protocol field. Entries that differ in it are
refused (`results.refuse`) and not compared (rb-verify). So leave the field out of key and entry at the value
of all earlier results, as `registry.param` does for an `optional` option.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, NamedTuple

Role = Literal["protocol", "result", "cost", "label"]


class Field(NamedTuple):
    """One field, its role, and its line in rb-record(5) or rb-entry(5).

    role: `protocol` decides whether two results are comparable (in a record and in `train`: whether
    two records are of the same model); `result` is the outcome, `cost` the time and work; a `label` is any
    other field. For a field of an entry, group is its heading in rb-entry(5), and page says how the
    leaderboard page stores it: `shared` once for all records with the same value, `own` with each record, and
    `omitted` not at all, because it is long.
    """

    name: str
    role: Role
    doc: str
    group: str = "result"
    page: Literal["shared", "own", "omitted"] = "shared"


RECORD = (
    Field("schema", "label", "the format's version, 1, also where it is missing; newer ones are refused"),
    Field("arch", "protocol", "the architecture. Always present; see ARCHITECTURES"),
    Field(
        "dataset",
        "protocol",
        "the data set that the model belongs to, as --dataset takes it. An evaluation on another one names"
        " it in its entry",
    ),
    Field(
        "class_map", "protocol", "the names of the model's outputs, where they are not the data set's classes"
    ),
    Field("train", "protocol", "how the weights were trained; see TRAINING"),
    Field("checkpoint", "protocol", "the weights: sha256: and the hash of a file in the store"),
    Field(
        "checkpoint_file",
        "protocol",
        "the absolute path of a user's own file of weights; its hash is in checkpoint",
    ),
    Field("recognised", "protocol", "what was derived from that file: architecture, classes, normalisation"),
    Field(
        "leaderboard",
        "label",
        "the entry of RobustBench that --arch robustbench:NAME said the file is of; rb-rank --against"
        " robustbench finds its published values by it",
    ),
    Field("aggregated", "protocol", "of rb-rank --aggregate: how many records were averaged, and which"),
    Field("randomised", "label", "true where the model gives other logits for the same image"),
    Field("metrics", "result", "the results: a name and a number. Flat, so that every program can read it"),
    Field("evals", "result", "how each of them was measured, an entry per metric; see rb-entry(5)"),
    Field(
        "checksums",
        "result",
        "the checksum of each entry of evals, by metric, written with the entry: rb-verify --inconsistent"
        " names entries that were changed since",
    ),
    Field(
        "examples",
        "label",
        "by the digest of a list of examples, of which entries have answers: their classes",
    ),
    Field(
        "error",
        "result",
        "why a tool could not process this record: an object with tool and message. A line that was no record"
        " is passed on as an error that also has source, line and text",
    ),
    Field("verify", "result", "of rb-verify: the verdict on each entry, and what is inconsistent"),
    Field("rank", "result", "of rb-rank: 1 is the best, equal values share a rank"),
    Field("band", "result", "of rb-rank --bands: records of one band cannot be told apart"),
    Field("rank_ci95", "result", "of rb-rank --ci: the interval of the rank; equal records share theirs"),
    Field("ranking", "result", "of rb-rank --bootstrap: what was ranked, and the interval of its value"),
    Field(
        "published",
        "result",
        "of rb-rank --against: source and row of published results, and by metric their value, the difference"
        " (ours minus theirs), its standard_error and p-value, and whether it is within the sampling error",
    ),
    Field(
        "paired",
        "result",
        "of rb-rank --paired: the reference, and by metric the difference to it on the same images, its ci95,"
        " McNemar's p (Holm's correction; of means Student's), the number of images, and how many of them"
        " count for this model alone and for the reference alone (changed)",
    ),
    Field(
        "per_class",
        "result",
        "of rb-rank --per-class: the metric, its worst class, and of each class its value, ci95 and n",
    ),
    Field("pareto", "label", "of rb-rank --pareto: whether no other record is better in all named metrics"),
    Field(
        "card",
        "label",
        "of rb-card: why it ended, its precision and seconds, the number of all images, and of each part its"
        " metrics, weight, seconds, images, half_width (of the interval for all images), the reason where it"
        " was not measured, and next_seconds, what one more look takes. Of two models against: the other"
        " and by part and metric the difference, this minus other, with its interval, and which is better",
    ),
    Field("stored", "label", "of rb-store ls: kind, key, bytes and time of a result's file"),
)

TRAIN = (
    Field("method", "protocol", "the training method"),
    Field("seed", "protocol", "the seed of weights, order and augmentation"),
    Field("epochs", "protocol", "epochs of the recipe"),
    Field("preset", "protocol", "the recipe's name, where it came from one"),
    Field("config", "protocol", "everything that decided the weights: options of the method and the recipe"),
    Field("precision", "protocol", "the type of numbers: fp32 or bf16"),
    Field("draws", "protocol", "the generator of random numbers"),
    Field("init", "protocol", "the weights that the training started from, where they were not fresh"),
    Field(
        "output",
        "protocol",
        "of --output random: the step whose weights were chosen, and the number of steps",
    ),
    Field("tracking", "protocol", "the metrics that were measured each epoch"),
    Field("seconds_per_epoch", "cost", "time of an epoch, without validation"),
    Field("passes", "cost", "passes through the network, for each image"),
    Field("prepared", "label", "how the network was made fast"),
    Field("command", "label", "the command line, without paths: files by name and the start of their hash"),
    Field("device", "label", "where it ran"),
    Field("threads", "label", "threads on the processor"),
    Field("mps", "label", "NVIDIA's Multi-Process Service ran"),
    Field("processes", "label", "processes that trained together"),
    Field("trained_on", "result", "the processors of epochs, where there were several, and stacked seeds"),
    Field("batchnorm", "result", "of several processes: whether BatchNorm's statistics are synchronised"),
    Field("stopped_after", "result", "the last epoch, where the training ended early"),
    Field("catastrophic_overfitting", "result", "the epoch in which training by one step lost robustness"),
    Field("at_chance", "result", "clean accuracy on training images, where it ended no better than a guess"),
    Field("checkpoints", "result", "the last and the best weights, and which of them is selected"),
    Field("validation", "result", "what the validation measured, and on which images"),
    Field("history", "result", "a list for each quantity, one number per epoch"),
)

_PROTOCOL = {
    "images": (
        ("split", "the part of the data set: train, valid or test; of a difference train-test or test-train"),
        ("dataset", "the data set, where it is not the record's"),
        (
            "indices",
            "the hash of the examples' numbers, where they were chosen (--indices, train --val)",
        ),
        ("train_indices", "the same hash for the training images of a difference"),
        ("class_map", "the hash of the class names, where classes are mapped (--class-map FILE)"),
    ),
    "random numbers": (
        ("seed", "the seed"),
        ("draws", "the generator"),
        ("init_seed", "the seed of fresh weights"),
        (
            "verdict_draws",
            "of a randomised model: the draws of each verdict, whose mean the accuracy is",
        ),
    ),
    "arithmetic": (
        ("precision", "the precision of attack searches: fp32 or bf16; fp32 always decides the result"),
    ),
    "defence": (
        ("defend", "the stages in front of the network, with their options, as --defend takes them"),
        (
            "backward",
            "of an attack through them: how the gradient of each stage was taken: own, stand-in, none or"
            " identity (BPDA)",
        ),
    ),
    "attack": (
        ("attack", "its name in rb-attack"),
        ("norm", "the norm of its distances: linf, l2 or l1"),
        ("eps", "the distance, on the [0, 1] scale of pixels: 8/255 is 0.03137"),
        ("loss", "the loss that was maximised"),
        ("best", "of local optimality: the attacks whose smallest distances an attack is compared with"),
        ("ladder", "the distances of one run, where each starts at the images of the one before"),
        (
            "screen",
            "of rb-attack --two-phase: attacks on all images; the value is of these and the attack together",
        ),
        ("grid", "8bit, where the attacked images have pixels k/255 (--grid 8bit)"),
        ("eot", "of a randomised model: the draws that each gradient, or score without one, is the mean of"),
        ("eot_mean", "what that mean is of: loss, logits, or both for an attack with parts"),
        ("attacked", "which images: all, where misclassified ones were attacked too"),
        ("source", "of a transfer: the attacked models; of a published number: where it is from"),
    ),
    "certificate": (
        ("certificate", "its method in rb-certify"),
        ("classifier", "smoothed: the certificates are not of the network itself"),
        ("sigma", "of smooth: the standard deviation of the noise"),
        ("alpha", "of smooth: the error probability of an image's certificates"),
        ("select", "of smooth: the draws that select the class"),
    ),
    "noise": (
        ("noise", "its name in rb-pr"),
        ("gamma", "its radius, on the [0, 1] scale of pixels"),
        ("samples", "draws per image"),
        ("definition", "the distribution of the noise, in words"),
        ("denominator", "which images count: correct, those classified correctly without noise, or all"),
        ("rho", "of ProbAcc: the tolerated failure rate"),
        ("criterion", "of ProbAcc: when an image passes"),
        ("stopping", "the rule by which draws of an image end early"),
        ("error", "the error rate of that rule"),
        ("splitting", "of rb-pr --sampling rare: the estimator, in words"),
        ("particles", "of rb-pr --sampling rare: the number of particles"),
        ("moves", "of rb-pr --sampling rare: moves per level"),
        ("runs", "of rb-pr --sampling rare: independent runs per image"),
        ("keep", "of rb-pr --sampling rare: the share of particles that a level keeps"),
        ("floor", "of rb-pr --sampling rare: the smallest probability that is estimated"),
    ),
    "corruption": (
        ("corruption", "its name in rb-corrupt"),
        ("severity", "1 to 5"),
        ("corruptions", "the corruptions of a mean"),
        ("severities", "the severities of a mean"),
        ("archive", "the hash of the file that the images came from (--from)"),
        ("reference", "of mCE: the model whose errors mCE divides by"),
    ),
    "measure": (
        ("measure", "its name in rb-measure"),
        ("on", "the weights: trained, or init for fresh ones"),
        ("batchnorm", "the statistics of BatchNorm, where there is a choice"),
        ("batches", "number of batches"),
        ("batch_size", "images per batch"),
        ("formula", "of a bound: its formula"),
        ("inputs", "of a bound: the numbers in it"),
        ("estimated", "of a bound: which of them were estimated"),
        ("note", "of a bound: how it differs from the theorem"),
        ("vacuous", "of a bound: whether it is vacuous"),
    ),
    "calculation": (
        ("expression", "of rb-score --add: the expression"),
        ("terms", "of a score: metric, weight and direction of each term"),
        ("missing", "of a score: how missing metrics were handled"),
        ("within", "of a score: the fields in which the compared records agree"),
        ("compared", "of a score: the number of compared records"),
        ("preset", "of a score: the preset's name"),
        ("records", "of a mean by rb-rank: the number of records"),
    ),
    "publication": (
        ("published", "the number as it was printed"),
        ("unit", "percent, where it was printed so"),
        ("rounding", "the unit of the last printed digit"),
        ("key", "its name in the source, if it is spelled differently"),
        ("epoch", "the epoch that it was measured after"),
        ("threeseed", "true where it is the mean over seeds"),
    ),
}

EVALS = (
    Field("tool", "label", "the tool that wrote the entry", "label"),
    Field(
        "command",
        "label",
        "the command line, without paths: files by name and the start of their hash",
        "label",
    ),
    Field("metric", "label", "the name under which the value stands in metrics", "label"),
    Field("n", "protocol", "the number of images (of PR: those that count)", "images", "own"),
    *(Field(name, "protocol", doc, group) for group, fields in _PROTOCOL.items() for name, doc in fields),
    Field("value", "result", "the number, or null where there is none"),
    Field("seconds", "cost", "time; of a stored result that of its computation", "cost", "own"),
    Field(
        "draws_error",
        "result",
        "of the mean accuracy of a randomised model: its standard error by the draws, for these images",
        page="own",
    ),
    Field("undecided", "result", "images that the draws do not decide (ProbAcc)", page="own"),
    Field("confirmed", "cost", "the share of copies that the network itself decided in float32", page="own"),
    Field("device", "label", "where it ran: cpu, cuda, or both joined by +", "label", "own"),
    Field(
        "environment",
        "label",
        "the version of torch, and the processor with its instruction set, or the GPU and the versions"
        " of CUDA and cuDNN: with the same ones the same command gives the same outcomes",
        "label",
    ),
    Field("reason", "label", "why value is null; metrics then lacks the metric", "result", "own"),
    Field(
        "ci95",
        "result",
        "the interval of 95 % for the value; with --confidence 0.9 it is ci90. For PR_D and pfail it is the"
        " interval of the mean over the source of the images. For ProbAcc it is the interval of the share of"
        " images whose true PR passes; the value is a biased estimate of that share",
    ),
    Field(
        "anytime",
        "result",
        "of rb-card: ci95 holds for all its planned looks together, and so wherever the run stopped: their"
        " number, the confidence of each, and the interval of the value that all `images` would give",
        page="own",
    ),
    Field(
        "interval_of",
        "label",
        "of losses, margin and nu, which have no bound: the interval is for images like those seen. It does"
        " not allow for far more extreme images that are rarer than about 3/n",
    ),
    Field("abstained", "result", "of smooth: images without a certificate of any class"),
    Field("mean_radius", "result", "of smooth: the mean certified radius, 0 where the class is wrong"),
    Field("estimator", "result", "of ProbAcc: that the value is a plug-in estimate, and the draws per image"),
    Field(
        "estimate",
        "result",
        "of ProbAcc: an estimate of the true share, from the maximum likelihood distribution of PR",
    ),
    Field(
        "quantiles",
        "result",
        "quantiles over images: of PR_D, with intervals for the true PR of these images, or of the distances"
        " of rb-attack curve",
        page="omitted",
    ),
    Field("area", "result", "of rb-attack curve: the mean accuracy over eps from 0 to the largest one"),
    Field("unreached", "result", "of rb-attack curve: images without an adversarial example"),
    Field("se", "result", "the standard error of a measure's value"),
    Field("se_over", "result", "what it was estimated over: batches, probes or examples"),
    Field(
        "source_model",
        "label",
        "of a transfer: architecture, data set and file of each attacked model, whose checkpoint is source",
        "label",
        "omitted",
    ),
    Field(
        "ranges",
        "result",
        "of a score: the smallest and largest value of each term among the compared records",
    ),
    Field("broken_by", "result", "of an attack of several parts: how many images each part broke"),
    Field(
        "broken_by_source",
        "result",
        "of a transfer from several models: how many images the examples of their ensemble broke, and those"
        " of each model among the images that were left",
    ),
    Field(
        "two_phase",
        "result",
        "of rb-attack --two-phase: the number of images that the first phase (the screen) did not break,"
        " and of those that the attack ran on; size, sampled and broken of each stratum; the interval of the"
        " value on just these n images; of each stored attack of the screen its metric, settings, seed,"
        " number of broken images, and the key of its outcomes",
        page="own",
    ),
    Field("distance", "result", "of an attack that minimises it: its mean over the images that were fooled"),
    Field("below_floor", "result", "of rb-pr --sampling rare: images whose probability is below floor"),
    Field("images", "result", "of rb-pr --sampling rare: the probability of each image", page="omitted"),
    Field("layers", "result", "of wci: the term of each layer"),
    Field("negative", "result", "of wci: layers whose estimate is negative and counts as 0"),
    Field("tests", "result", "of rb-attack check: each test, and by how much it holds"),
    Field("union", "result", "of a union: its parts, and the value of each"),
    Field(
        "explained",
        "result",
        "of rb-score --explain: images that each part breaks, and breaks alone; the parts in the order of"
        " what each adds; the smallest set with the same union",
        page="omitted",
    ),
    Field("contributions", "result", "of a score: what each term adds"),
    Field("std", "result", "of a mean by rb-rank: the standard deviation of the sample"),
    Field(
        "detail",
        "result",
        "with --detail: confusion matrix and mean confidences, or what is certified of each image",
        page="omitted",
    ),
    Field(
        "answers",
        "result",
        "of a share of images: the digest of the list of examples, their number, and a bit for each: whether"
        " it counts in the value",
        page="omitted",
    ),
    Field("sanity", "label", "what a check of the model's outputs found", "label"),
    Field("warnings", "result", "warnings about the number, such as vanishing gradients"),
    Field(
        "passes",
        "cost",
        "passes that the method needs through the network, for each image; on a GPU also those of images that"
        " are broken, until they leave the batch",
        "cost",
        "omitted",
    ),
    Field("draws_spent", "cost", "of sampling that stops early: the draws made", "cost"),
    Field("draws_saved", "cost", "of sampling that stops early: the draws saved", "cost"),
    Field("prepared", "label", "how the network was made fast for searches", "label"),
    Field("threads", "protocol", "of seconds_per_epoch: threads on the processor", "arithmetic"),
    Field("stored", "label", "of rb-store: where the result is kept", "label"),
)

_INTERVAL = re.compile(r"ci\d")  # ci95, ci99.9


def is_interval(name: str) -> bool:
    """Whether a field of an entry is an interval of the value: `ci95`, `ci99.9`."""
    return _INTERVAL.match(name) is not None


@cache
def role(name: str) -> Role:
    """The role of an entry's field. Fields that the table lacks are options of registered methods:
    protocol."""
    roles: dict[str, Role] = {field.name: field.role for field in EVALS}
    return "result" if is_interval(name) else roles.get(name, "protocol")


@cache
def not_protocol(table: tuple[Field, ...]) -> frozenset[str]:
    """The fields of a table that are not part of the protocol."""
    return frozenset(field.name for field in table if field.role != "protocol")


@cache
def of_images() -> frozenset[str]:
    """The fields of an entry that say which images were evaluated."""
    return frozenset(field.name for field in EVALS if field.group == "images")


@cache
def on_page(how: str) -> tuple[str, ...]:
    """The fields of an entry that the leaderboard page stores as `own`, or leaves out as `omitted`."""
    return tuple(field.name for field in EVALS if field.page == how)
