"""Links lead somewhere, YAML is accepted, commands exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml

from tests.docs.command_line import commands
from tests.docs.generate import ROOT
from tests.docs.pages import PAGES, Block, anchors, blocks, links
from topo_scheduler.api.annotations import USERS_MAY_WRITE, Source, read_annotations
from topo_scheduler.api.config import load_configuration
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.migrations import KIND, Migration, MigrationSpec
from topo_scheduler.api.process import API_VERSION
from topo_scheduler.cli.main import main as cli

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def _name(value: Path | Block) -> str:
    return value.where if isinstance(value, Block) else str(value.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_relative_links_resolve(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_is_reached_from_the_readme() -> None:
    reached, queue = {ROOT / "README.md"}, [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page) if "://" not in link}
        queue += (fresh := {path for path in targets if path.suffix == ".md"} - reached)
        reached |= fresh
    assert set(PAGES) <= reached


def test_code_blocks_are_closed_and_name_their_language() -> None:
    for page in PAGES:
        assert page.read_text(encoding="utf-8").count("```") % 2 == 0, page
    assert [block.where for block in blocks("")] == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_names_nothing_of_one_machine(page: Path) -> None:
    match = re.search(r"(?<![\w.~}])/(work|opt|home|root|tmp|farm)/\w", page.read_text(encoding="utf-8"))
    assert match is None, match


# ---------------------------------------------------------------- YAML


@pytest.mark.parametrize("block", blocks("yaml"), ids=_name)
def test_yaml_is_accepted(block: Block) -> None:
    documents = [document for document in yaml.safe_load_all(block.text) if document is not None]
    assert documents
    if all(document.get("kind") == KIND for document in documents):
        for document in documents:
            spec = msgspec.convert(document, Migration, strict=True).spec
            assert spec.pods and document["spec"].keys() <= {*MigrationSpec.__struct_encode_fields__}
        return
    if any(document.get("apiVersion") == API_VERSION for document in documents):
        load_configuration({block.where: block.text})
        return
    for document in documents:
        for annotations in _annotations(document):
            assert all(isinstance(value, str) for value in annotations.values()), "Kubernetes takes strings only"
            assert {name for name in annotations if name.startswith(PREFIX)} <= set(USERS_MAY_WRITE)
            assert read_annotations([Source("Job", block.where, annotations)]).problems == ()


def _annotations(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        annotations = value.get("annotations")
        if isinstance(annotations, dict):
            yield annotations
        for inner in value.values():
            yield from _annotations(inner)


# ---------------------------------------------------------------- commands


def _lines() -> Iterator[tuple[str, str]]:
    for block in blocks("sh", "console"):
        for line in block.text.splitlines():
            for command in line.removeprefix("$ ").split("&&"):
                if command.strip():
                    yield block.where, command.strip()


LINES = list(_lines())
CALLS = [(where, line) for where, line in LINES if line.startswith("topo-scheduler")]
QUOTED = [
    (str(page.relative_to(ROOT)), command)
    for page in PAGES
    for command in re.findall(r"`(topo-scheduler [^`]+)`", page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("where", "line"), [*CALLS, *QUOTED])
def test_a_command_exists_with_its_options(where: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    if words[0].startswith("-"):
        assert words[0] in _options(cli), where
        return
    command = commands()[words[0]]
    options = _options(command)
    for word in words[1:]:
        if word.startswith("-"):
            assert word.partition("=")[0] in options, f"{where}: {word}"
    takes_arguments = any(isinstance(parameter, click.Argument) for parameter in command.params)
    free = [word for word, before in zip(words[1:], words, strict=False) if _is_free(word, before, command)]
    assert takes_arguments or not free, where


def _options(command: click.Command) -> set[str]:
    parameters = command.get_params(click.Context(command, **command.context_settings))
    return {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}


def _is_free(word: str, before: str, command: click.Command) -> bool:
    if word.startswith("-"):
        return False
    owner = next((parameter for parameter in command.params if before in parameter.opts), None)
    return not (isinstance(owner, click.Option) and not owner.is_flag)


@pytest.mark.parametrize(("where", "line"), [pair for pair in LINES if pair[1].startswith("tox")])
def test_a_tox_environment_exists(where: str, line: str) -> None:
    named = re.search(r"-e (\S+)", line)
    text = (ROOT / "tox.ini").read_text(encoding="utf-8")
    assert named is None or f"[testenv:{named[1]}]" in text, where


@pytest.mark.parametrize(("where", "line"), [pair for pair in LINES if pair[1].startswith("kubectl")])
def test_a_file_given_to_kubectl_exists(where: str, line: str) -> None:
    page = (ROOT / where.partition(":")[0]).read_text(encoding="utf-8")
    for path in re.findall(r" -[fk] (\S+)", line):
        assert (ROOT / path).exists() or path == "." or f"Save this as `{path}`" in page, where
