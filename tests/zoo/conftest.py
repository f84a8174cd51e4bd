"""The same random weights and images in every run."""

from tests.models.conftest import _seed  # noqa: F401
