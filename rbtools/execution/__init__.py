"""Runs work in this process, in other processes, or on a cluster. This package does not depend on attacks and
losses."""

from rbtools.registry import Registry

LOCAL = "local"
ENGINES = Registry(
    "engine",
    {LOCAL: "rbtools.execution.processes:Processes", "ray": "rbtools.execution.ray_engine:RayEngine"},
)
