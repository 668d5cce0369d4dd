"""What the pages on plugins say is so."""

import re
from typing import Any

import pytest

from tests.docs.pages import blocks
from tests.helpers import make_node, make_pod
from tests.plugins.making import ROOT
from tests.scheduling.driver import Driver
from topo_scheduler import plugins
from topo_scheduler.api.config import Configuration
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.registry import Extensions

HOW_TO = (ROOT / "docs" / "how-to" / "write-a-plugin.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference" / "plugins.md").read_text(encoding="utf-8")


def smallest() -> Any:
    """The plugin of the how-to, as it is written there."""
    text = next(block.text for block in blocks("python") if "needs-certificate" in block.text)
    names: dict[str, Any] = {}
    exec(text, names)
    return names["plugin"]


def test_the_smallest_plugin_does_what_the_page_says() -> None:
    extensions = Extensions()
    extensions.register(smallest()({}).named("certified"))
    d = Driver()
    d.engine = Engine(Configuration(), d._resolve, extensions)
    d.engine.nodes_applied(
        [make_node("plain", "s1/l1"), make_node("good", "s1/l1", labels={"example.com/certified-for": "audio"})], 0
    )
    picky = make_pod("picky", gpus=1, annotations={"example.com/needs-certificate": "audio"})
    never = make_pod("never", gpus=1, annotations={"example.com/needs-certificate": "video"})
    assert d.run(picky, never) == {"picky": "good"}
    assert "2 node(s) had no certificate" in d.told(never)[0]
    with pytest.raises(ValueError, match="there are no arguments, found x"):
        smallest()({"x": 1})


def test_every_name_of_the_interface_is_in_the_reference() -> None:
    for name in plugins.__all__:
        assert re.search(rf"`{name}\b", REFERENCE), name


def test_every_field_of_what_plugins_are_given_is_in_the_reference() -> None:
    types = (plugins.Request, plugins.Leaves, plugins.LeafSeats)
    fields = {name for record_type in types for name in record_type._fields}
    fields |= set(plugins.Gang.__slots__) | set(plugins.Binding.__slots__)
    fields |= set(plugins.Plugin.__slots__) | set(plugins.Answer.__slots__) | set(plugins.Demand.__slots__)
    fields |= {name for name in vars(plugins.Nodes) if not name.startswith("_")} - {"known_value"}
    for name in fields:
        assert re.search(rf"`{name}\b", REFERENCE), name
