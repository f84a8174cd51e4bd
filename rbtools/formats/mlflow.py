"""Writes MLflow runs to a folder or a tracking server, with the MLflow client."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rbtools.errors import RbError
from rbtools.formats.base import RESULTS, Document, Record, Unit, leaves
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.rows import measured
from rbtools.formats.written import WrittenOnly, model_name, numbers_of, text_of
from rbtools.records import results
from rbtools.registry import param

if TYPE_CHECKING:
    from mlflow import MlflowClient

_LONGEST = 6000  # maximum number of characters in the value of a parameter
_NO_NAME = re.compile(r"[^\w\-. :/]")


@dataclass(frozen=True, kw_only=True)
class MLflow(WrittenOnly):
    """MLflow runs, one for each record. PATH is a folder (mlruns) or the address of a tracking server
    (http://... or https://...).

    A run contains the metrics of its record. The number of images and the ends of the interval are the
    metrics METRIC.n, METRIC.low and METRIC.high. Other fields are parameters (arch.name, train.method ...),
    the data set and the checkpoint are tags, and the complete record is the artifact record.json. This format
    needs the extra "mlflow".
    """

    name: ClassVar[str] = "mlflow"
    version: ClassVar[int] = 1
    one_file: ClassVar[bool] = False

    experiment: str = param("rbtools", "Name of the experiment that contains the runs.", metavar="NAME")

    def unit(self, record: Record) -> Record:
        numbers_of(record)
        return record

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        return iter(())  # `send` writes the units

    def send(self, units: Iterable[Unit], target: str) -> None:
        client = _client(target)
        from mlflow.exceptions import MlflowException

        try:
            found = client.get_experiment_by_name(self.experiment)
            experiment = client.create_experiment(self.experiment) if found is None else found.experiment_id
            for unit in units:
                _keep(client, experiment, unit.content)
        except (MlflowException, OSError) as wrong:
            reason = " ".join(str(wrong).split())[:300]
            raise RbError(f"MLflow cannot store the runs in {target}: {reason}") from None


def _client(target: str) -> MlflowClient:
    # MLflow supports folders only on request, and reports its use unless this is disabled.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise RbError("mlflow needs the package mlflow-skinny. Run pip install 'rbtools[mlflow]'.") from None
    is_server = target.startswith(("http://", "https://"))
    return MlflowClient(tracking_uri=target if is_server else Path(target).absolute().as_uri())


def _keep(client: MlflowClient, experiment: str, record: Record) -> None:
    from mlflow.entities import Metric, Param, RunTag

    tags = {"dataset": text_of(record, "dataset"), "checkpoint": text_of(record, "checkpoint")}
    made = client.create_run(
        experiment, run_name=model_name(record), tags={k: v for k, v in tags.items() if v}
    )
    key = made.info.run_id
    numbers = [
        Metric(_NO_NAME.sub("_", name), value, made.info.start_time, 0)
        for name, value in _metrics(record).items()
    ]
    params = [
        Param(_NO_NAME.sub("_", name), str(value)[:_LONGEST])
        for name, value in leaves({name: part for name, part in record.items() if name not in RESULTS})
    ]
    # A server takes at most 1000 metrics at once.
    for at in range(0, len(numbers), 1000):
        client.log_batch(key, metrics=numbers[at : at + 1000])
    for at in range(0, len(params), 100):
        client.log_batch(key, params=params[at : at + 100])
    client.log_batch(key, tags=[RunTag("rbtools.schema", str(record.get("schema")))])
    client.log_dict(key, record, "record.json")
    client.set_terminated(key)


def _metrics(record: Record) -> dict[str, float]:
    """The metrics with n, low and high; a metric that is itself called METRIC.n keeps its value."""
    metrics = numbers_of(record)
    beside = {
        f"{name}.{word}": value
        for name in metrics
        for word, value in measured(results.last_entry(record, name)).items()
    }
    return {name: float(value) for name, value in (beside | metrics).items()}
