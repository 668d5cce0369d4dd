"""A daemon that ends while it starts leaves nothing behind."""

import gc
import warnings
from unittest.mock import Mock

import pytest

from tests.kube.virtual import real_time
from topo_scheduler import daemon
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.process import MetricsSettings, SchedulerConfig, ServingTLS


@real_time
async def test_the_watch_of_certificates_is_not_begun_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = MetricsSettings(bind_address="127.0.0.1", port=0, tls=ServingTLS(enabled=True))
    replica = daemon.Daemon(Configuration(SchedulerConfig(metrics=metrics)), Mock())

    def end() -> None:
        raise KeyError("as at SIGTERM while kernels are compiled")

    monkeypatch.setattr(daemon, "warm", end)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(KeyError):
            await replica._run()
        gc.collect()
    assert not [str(warning.message) for warning in seen if "never awaited" in str(warning.message)]
