"""The evaluation loop, which computes batches, an outcome for each example, and entries from outcomes."""
