"""Runs work in this process, in other processes, or on a cluster."""

from rbtools.registry import Registry

LOCAL = "local"
ENGINES = Registry(
    "engine",
    {LOCAL: "rbtools.execution.processes:Processes", "ray": "rbtools.execution.ray_engine:RayEngine"},
)
