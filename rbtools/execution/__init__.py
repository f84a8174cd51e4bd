"""How jobs run: in this process, in others, or on a cluster. Independent of attacks and losses."""

from rbtools.registry import Registry

LOCAL = "local"
ENGINES = Registry(
    "engine",
    {LOCAL: "rbtools.execution.local:LocalExecutor", "ray": "rbtools.execution.ray_executor:RayExecutor"},
)
