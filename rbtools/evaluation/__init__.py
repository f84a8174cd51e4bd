"""The evaluation loop, which computes an outcome for each example, in batches, and entries from outcomes."""
