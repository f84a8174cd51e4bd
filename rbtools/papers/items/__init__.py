"""Every numbered figure and table of the papers, by paper and number."""

from rbtools.papers.items.nas_robbench_items import NAS_ROBBENCH, THEORY
from rbtools.papers.items.prbench_items import PRBENCH
from rbtools.papers.items.robustness_dataset_items import ROBUSTNESS_DATASET
from rbtools.papers.items.wci_items import WCI

PAPERS = {
    "nas-robbench-201": NAS_ROBBENCH,
    "robustness-dataset": ROBUSTNESS_DATASET,
    "prbench": PRBENCH,
    "wci": WCI,
    "theory": THEORY,
}
