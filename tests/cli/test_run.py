"""``run``: flags over file over defaults, how it starts, and how it ends."""

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Served, run, start
from topo_scheduler.api.config import ConfigError, Configuration
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.cli import run as run_command
from topo_scheduler.cli.run import with_flags


def test_flags_override_the_file_and_leave_the_rest() -> None:
    file = Configuration(
        SchedulerConfig.model_validate({"leaderElection": {"leaseDuration": "30s"}, "metrics": {"port": 1234}})
    )
    merged = with_flags(file, {"scheduler_name": "other", "leader_elect": False, "metrics_port": 0, "log_level": None})
    assert merged.scheduler.scheduler_name == "other"
    assert merged.scheduler.leader_election.leader_elect is False
    assert merged.scheduler.leader_election.lease_duration == 30
    assert merged.scheduler.metrics.port == 0
    assert merged.scheduler.logging == file.scheduler.logging
    assert with_flags(file, {"scheduler_name": None}) == file


def test_flags_of_metrics_override_a_file_that_does_not_name_them() -> None:
    merged = with_flags(Configuration(), {"metrics_tls": True, "metrics_authorization": "tokenReview"})
    assert merged.scheduler.metrics.tls.enabled
    assert merged.scheduler.metrics.authorization == "tokenReview"
    assert merged.scheduler.metrics.port == SchedulerConfig().metrics.port


def test_flags_go_with_own_levels_none_of_which_is_a_leaf() -> None:
    levels = [{"name": name, "labels": [f"x/{name}"]} for name in ("row", "rack")]
    file = Configuration(SchedulerConfig.model_validate({"topology": {"levels": levels}}))
    merged = with_flags(file, {"log_level": "debug"})
    assert merged.scheduler.topology == file.scheduler.topology


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"metrics_port": 70000}, "--metrics-port: must be at most 65535"),
        ({"metrics_authorization": "tokenReview"}, "metrics: authorization: tokenReview needs TLS"),
        ({"retry_period": -1.0}, "--leader-elect-retry-period: must be above 0"),
        ({"lease_duration": 5.0}, "leader election: leaseDuration > renewDeadline"),
        ({"scheduler_name": ""}, "--scheduler-name: "),
        ({"resource_name": ""}, r"--leader-elect-resource-name: write lower-case letters, .* \(found ''\)"),
        ({"resource_name": "No Such/.."}, "--leader-elect-resource-name: write lower-case letters"),
        ({"resource_namespace": "a.b"}, "--leader-elect-resource-namespace: write lower-case letters"),
        ({"bind_address": "No Such"}, "--bind-address: write an IP address, or a host name"),
    ],
)
def test_flags_that_do_not_hold(flags: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        with_flags(Configuration(), flags)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], True),
        (["--leader-elect"], True),
        (["--leader-elect=true"], True),
        (["--leader-elect=false"], False),
        (["--leader-elect", "--leader-elect-lease-duration=1m", "--leader-elect-retry-period", "500ms"], True),
    ],
)
def test_leader_elect_is_spelled_as_in_kube(
    arguments: list[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Configuration] = []

    async def serve(configuration: Configuration, config_path: Path | None) -> None:
        seen.append(configuration)

    monkeypatch.setattr(run_command, "_serve", serve)
    monkeypatch.setattr("topo_scheduler.observability.logs.configure", lambda *_: None)
    answer = run("run", *arguments)
    assert answer.exit_code == 0, answer.output
    election = seen[0].scheduler.leader_election
    assert election.leader_elect is expected
    if len(arguments) > 1:
        assert (election.lease_duration, election.retry_period) == (60.0, 0.5)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--kubeconfig", "/nowhere/kubeconfig"], "/nowhere/kubeconfig does not exist"),
        (["--config", "/nowhere/config.yaml"], "/nowhere/config.yaml: No such file"),
        (["--leader-elect-lease-duration", "fast"], "'fast' is not a duration"),
        (["--leader-elect=perhaps"], "'perhaps' is not a valid boolean"),
    ],
)
def test_what_cannot_be_used_is_reported_in_one_line(arguments: list[str], expected: str) -> None:
    process = start("run", *arguments, "--log-level", "error")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert expected in err and "Traceback" not in err
    assert err.splitlines()[-1].startswith("Error: ")


def test_a_port_in_use(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ["--bind-address", "127.0.0.1", "--metrics-port", str(port), "--log-level", "error"]
        process = start("run", "--kubeconfig", served.kubeconfig, *flags)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err == f"Error: 127.0.0.1:{port} is in use by another process; choose another with metrics.port or" + (
        " --metrics-port, 0 takes a free one\n"
    )


@pytest.mark.parametrize("address", ["no.such.host.invalid", "a..b", "192.0.2.1"])
def test_an_address_that_is_not_here_names_its_field(served: Served, address: str) -> None:
    flags = ["--bind-address", address, "--metrics-port", "0", "--log-level", "error"]
    process = start("run", "--kubeconfig", served.kubeconfig, *flags)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.startswith(f"Error: cannot serve metrics and health on {address}:0: ")
    assert "metrics.bindAddress or --bind-address must name an address of this machine" in err


@pytest.mark.parametrize("field", ["resourceName", "resourceNamespace"])
@pytest.mark.parametrize("name", ["", "No Such/..", ".."])
def test_a_lease_that_no_server_would_have_is_refused_before_the_start(tmp_path: Path, field: str, name: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"apiVersion: topology.scheduler/v1alpha1\nkind: SchedulerConfig\nleaderElection: {{{field}: {name!r}}}\n"
    )
    for arguments, code in ((["check-config", str(config)], 1), (["run", "--config", str(config)], 2)):
        answer = run(*arguments)
        assert answer.exit_code == code
        assert f"leaderElection.{field}: write lower-case letters" in answer.output


def test_a_plugin_that_is_missing_keeps_it_from_starting(served: Served, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: topology.scheduler/v1alpha1\nkind: SchedulerConfig\nplugins: [{name: absent}]\n"
        "metrics: {bindAddress: 127.0.0.1, port: 0}\nlogging: {level: error}\n"
    )
    process = start("run", "--kubeconfig", served.kubeconfig, "--config", str(config))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert err.splitlines()[-1].startswith("Error: SchedulerConfig: plugins.0: plugin absent is not installed")
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_schedules_and_ends_orderly(served: Served, number: signal.Signals) -> None:
    served.create_pod("lonely")
    process = start("run", "--kubeconfig", served.kubeconfig, "--leader-elect=false", "--metrics-port=0")
    try:
        _wait(lambda: bound_to(served, "lonely"))
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    assert '"default/lonely: placed: ' in err and "Traceback" not in err


def test_where_to_record_must_be_usable(served: Served, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    flags = ["--kubeconfig", served.kubeconfig, "--metrics-port=0", "--log-level", "error"]
    for flag, remedy in (("--record", "name a directory this"), ("--audit-log", "name a file this process may append")):
        process = start("run", *flags, flag, str(tmp_path / "file" / "below"))
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2, err
        assert err.startswith(f"Error: {flag}: ") and remedy in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--record-max-bytes", "much"], "'much' is not a quantity"),
        (["--record-max-bytes", "5"], "--record-max-bytes: must be at least 1048576"),
    ],
)
def test_sizes_that_do_not_hold(flags: list[str], expected: str) -> None:
    answer = run("run", *flags)
    assert answer.exit_code == 2
    assert expected in answer.output


def test_a_record_outlives_its_scheduler(served: Served, tmp_path: Path) -> None:
    """Killed in the middle of it all; and the audit log follows its name, with and without SIGHUP."""
    record, audit = tmp_path / "record", tmp_path / "audit.jsonl"
    flags = ["--kubeconfig", served.kubeconfig, "--leader-elect=false", "--metrics-port=0"]
    process = start("run", *flags, "--record", str(record), "--record-max-bytes=64Mi", "--audit-log", str(audit))
    try:
        for number in range(3):
            served.create_pod(f"lonely-{number}")
            _wait(lambda name=f"lonely-{number}": bound_to(served, name))  # type: ignore[misc]
            _wait(lambda: audit.exists() and '"kind":"bound"' in audit.read_text())
            if number < 2:
                audit.rename(tmp_path / f"audit.{number}")
            if number == 0:
                process.send_signal(signal.SIGHUP)
        time.sleep(1.0)  # what is recorded is written every half second
    finally:
        process.kill()
        process.communicate()
    for path, name in ((tmp_path / "audit.0", "lonely-0"), (tmp_path / "audit.1", "lonely-1"), (audit, "lonely-2")):
        assert f'"name":"{name}"' in path.read_text()
    replayed = run("replay", str(record))
    assert replayed.exit_code == 0, replayed.output
    assert "ends in the middle, as when the scheduler runs or was killed" in replayed.output
    assert "3 decisions in 1 file repeated, 0 differences" in replayed.output


def bound_to(served: Served, name: str) -> str:
    """The node of a pod, empty while it has none."""
    pod = served.call(lambda: served.server.store.get("pods", name, "default"))
    return str(pod["spec"].get("nodeName", ""))


def _wait(holds: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)
