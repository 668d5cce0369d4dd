"""From the configuration and what is installed to what is registered."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.plugins.making import EXAMPLE, dist_info, metadata
from topo_scheduler.api.config import ConfigError, load_configuration
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.cli.main import main as cli
from topo_scheduler.plugins.loading import load_extensions

MODULE = """
from topo_scheduler.plugins import Plugin, Score, Strategy

def plain(arguments):
    return Plugin()

def picky(arguments):
    if set(arguments) - {"colour"}:
        raise ValueError("there is only colour")
    return Plugin(labels=[str(arguments.get("colour"))])

def later(arguments):
    return Plugin(version=99)

def nothing(arguments):
    return None

def renamed(arguments):
    return Plugin("another-name")

def taking(arguments):
    return Plugin(scores=[Score("topologyAlignment", nodes=lambda n, q, r: r)])

def ours(arguments):
    return Plugin(annotations=["topology.scheduler/mine"])

def twofold(arguments):
    return Plugin(scores=[Score("both")])

def blind(arguments):
    return Plugin(opt_in=True)

def strategic(arguments):
    return Plugin(strategies=[Strategy("balanced", lambda l, m: l, lambda s: None)])

def leaving(arguments):
    raise SystemExit(3)

number = 7
"""
NAMES = ("plain", "picky", "later", "nothing", "renamed", "taking", "ours", "twofold", "blind", "strategic", "leaving",
         "number", "missing")  # fmt: skip


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with all kinds of plugins, on the path."""
    (tmp_path / "topo_test_plugins.py").write_text(MODULE)
    points = {name: f"topo_test_plugins:{name}" for name in NAMES}
    dist_info(
        tmp_path, "topo-test-plugins", {**points, "absent": "no_such_module:plugin", "exiting": "topo_exits:plugin"}
    )
    (tmp_path / "topo_exits.py").write_text("raise SystemExit(1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def config(*plugins: object, **more: object) -> SchedulerConfig:
    named = [{"name": plugin} if isinstance(plugin, str) else plugin for plugin in plugins]
    return SchedulerConfig.model_validate({"plugins": named, **more})


def test_nothing_is_loaded_that_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert [plugin.name for plugin in load_extensions(config()).plugins] == ["topo-scheduler"]
    assert "installed but not named" in caplog.text


def test_what_is_named_is_loaded_in_order_with_its_arguments() -> None:
    extensions = load_extensions(config({"name": "picky", "arguments": {"colour": "team"}}, "plain"))
    assert [plugin.name for plugin in extensions.plugins] == ["topo-scheduler", "picky", "plain"]
    assert list(extensions.labels) == ["team"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("unheard-of", r"plugins\.0: plugin unheard-of is not installed; installed are .*plain"),
        ("absent", "plugin absent: no_such_module:plugin can't be imported: ModuleNotFoundError"),
        ("missing", "plugin missing: topo_test_plugins:missing can't be imported: AttributeError"),
        ("exiting", "plugin exiting: topo_exits:plugin can't be imported: SystemExit"),
        ("number", "plugin number: topo_test_plugins:number is not a function"),
        ({"name": "picky", "arguments": {"size": 1}}, "plugin picky: .*{'size': 1}: ValueError: there is only colour"),
        ("leaving", "plugin leaving: .*SystemExit: 3"),
        ("nothing", "plugin nothing: topo_test_plugins:nothing returned NoneType; a Plugin is expected"),
        ("later", "plugin later: it is written for version 99 of the plugin interface; this scheduler has 1"),
        ("renamed", "plugin renamed: it calls itself another-name"),
        ("taking", "plugin taking: a score called topologyAlignment is there already"),
        ("strategic", "plugin strategic: a strategy called balanced is there already"),
        ("ours", "plugin ours: it reads annotation topology.scheduler/mine"),
        ("twofold", "plugin twofold: score both must have either nodes or leaves"),
        ("blind", "plugin blind: it is opt_in, but reads no annotation"),
    ],
    ids=str,
)
def test_one_that_can_not_be_loaded_is_named_with_the_reason(wanted: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_extensions(config(wanted))


def test_one_that_two_packages_bring_is_refused(installed: Path) -> None:
    dist_info(installed, "another-package", {"plain": "topo_test_plugins:plain"})
    with pytest.raises(ConfigError, match="plugin plain is installed by another-package and topo-test-plugins"):
        load_extensions(config("plain"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plugins: [{name: a}, {name: a}]", "plugin a is named twice"),
        ("plugins: [{name: A B}]", "plugins.0.name"),
        ("{plugins: [{name: a}], pluginTimeout: 3s}", "at most a fifth of renewDeadline, 2s"),
        ("plugins: [{name: a, argument: {}}]", "did you mean arguments?"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_path(text: str, message: str) -> None:
    head = "apiVersion: topology.scheduler/v1alpha1\nkind: SchedulerConfig\n"
    body = text if not text.startswith("{") else text[1:-1].replace("], ", "]\n")
    with pytest.raises(ConfigError) as caught:
        load_configuration({"test": head + body})
    assert message in str(caught.value)


def test_check_config_loads_them_too(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    head = "apiVersion: topology.scheduler/v1alpha1\nkind: SchedulerConfig\nplugins: "
    file.write_text(head + "[{name: plain}]")
    assert CliRunner().invoke(cli, ["check-config", str(file)]).exit_code == 0
    file.write_text(head + "[{name: absent}]")
    answer = CliRunner().invoke(cli, ["check-config", str(file)])
    assert answer.exit_code == 1
    assert "no_such_module" in answer.output
    file.write_text(head + "[{name: unheard-of}]")
    answer = CliRunner().invoke(cli, ["check-config", str(file)])
    assert answer.exit_code == 1
    assert "Install it here, too" in answer.output


def test_the_example_is_found_by_its_own_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    metadata(folder, EXAMPLE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    extensions = load_extensions(config({"name": "cool-nodes", "arguments": {"hottest": 90}}))
    assert [score.name for score in extensions.added_scores] == ["coolness"]
    assert list(extensions.annotations) == ["example.com/max-celsius"]
