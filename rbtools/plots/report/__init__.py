"""The report on one model: a page in one file, for a paper's appendix or a review."""
