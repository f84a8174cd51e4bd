"""Jobs on a Ray cluster: the cluster, its workers, and the executor."""
