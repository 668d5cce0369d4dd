"""The language check finds what it should, written pages keep to it, and each class has a name of its own."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.prose.__main__ import ROOT, files, findings
from tests.prose.extract import of_markdown, of_python, of_script, of_settings, of_yaml, sentences
from tests.prose.rules import RULES, SECOND_WORDS

PAGES = [path for path in files() if path.suffix == ".md"]
MODULES = [path for path in files() if path.suffix != ".md"]
EXAMPLES = [
    ("the user is told", "is reported, is logged, is published; or name the actor"),
    ("the event tells which node", "reports, shows or says which"),
    ("it is waited for nodes", "name the actor"),
    ("nodes are looked at", "the scheduler checks, reads or searches for"),
    ("pods that are next looked at", "the scheduler checks, reads or searches for"),
    ("the node was looked up", "the scheduler checks, reads or searches for"),
    ("nobody is evicted", "no pod, a pod, which, any user"),
    ("who waits gets a node", "workloads that"),
    ("who may write the status", "a user who, a client that, the pod that"),
    ("it is refused: who wrote it?", "a user who, a client that, the pod that"),
    ("the node, and who uses it", "a user who, a client that, the pod that"),
    ("whoever binds the pod", "name the actor: any user, the client that"),
    ("the plan is made anew", "again"),
    ("whatever else runs there", "name it"),
    ("beside that, two nodes are free", "in addition"),
    ("so many more nodes", "additional"),
    ("a pod gives way", "is preempted, makes room"),
    ("the other gave way", "is preempted, makes room"),
    ("it starts now, or not yet", "is pending"),
    ("the job may not yet start", "is pending"),
    ("a job stands where it stands", "was placed or is pending"),
    ("the gang held nothing", "gets no reservation"),
    ("what is left over goes", "name it"),
    ("who else might move", "other pods"),
    ("a node is searched", "the scheduler searches for"),
    ("the loop has not turned for 30 s", "the event loop stalled"),
    ("then we are cut off", "is partitioned"),
    ("this side may be cut off", "is partitioned"),
    ("someone else deleted it", "another client, another user"),
    ("a repeat of it", "resample"),
    ("the back-off doubles", "backoff"),
    ("the next leader carried on", "continued"),
    ("after the cool-down", "cooldown"),
    ("the node is evacuated", "drain"),
    ("nodes of one GPU type", "GPU model"),
    ("a half-bound gang", "partially bound"),
    ("a half gang is rolled back", "partially bound gang"),
    ("the bind is held back", "in backoff, reserved, or protected"),
    ("a lone pod starts", "single pod"),
    ("the level is loosened", "relax"),
    ("a mixed gang is placed", "heterogeneous gang"),
    ("an orderly shutdown", "graceful"),
    ("the workload is parked", "unschedulable"),
    ("seats are held for it", "nodes are reserved"),
    ("the plugin is set aside", "unschedulable, in backoff, or disabled"),
    ("setting aside a plugin", "unschedulable, in backoff, or disabled"),
    ("an unplaceable gang", "unschedulable"),
    ("the cheapest way out", "remedy"),
    ("the event says why not", "reason"),
]
"""Sentences, and what to write instead of a phrase in each. They stand here so that no rule is lost unnoticed."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_keeps_to_the_guide(page: Path) -> None:
    assert list(findings(page)) == []


def test_modules_keep_to_the_guide() -> None:
    """Docstrings, comments, messages and help texts, of all other files; in one test, as there are hundreds of them."""
    assert [f"{path.relative_to(ROOT)}:{finding}" for path in MODULES for finding in findings(path)] == []


def test_the_check_finds_phrases_long_sentences_and_long_pages(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nNobody waits.\n\n" + "word " * 26 + "end.\n\n```text\nnobody\n```\n" + "A b.\n" * 750)
    reported = list(findings(page))
    assert [finding.partition(":")[0] for finding in reported] == ["3", "5", "1"]
    assert "«Nobody»" in reported[0] and "27 words" in reported[1] and "a page of" in reported[2]


def test_the_check_finds_long_sentences_in_modules_and_manifests(tmp_path: Path) -> None:
    module, manifest = tmp_path / "module.py", tmp_path / "manifest.yaml"
    long = "word " * 13 + "\n"
    module.write_text(f'"""{long}{long}end.\n"""\n')
    manifest.write_text(f"kind: Pod\n# {long}# {long}spec:\n  description: >-\n    {long}    {long}  name: nobody\n")
    assert [finding.partition(":")[0] for finding in findings(module)] == ["1"]
    assert [finding.partition(":")[0] for finding in findings(manifest)] == ["2", "5"]


def test_comments_and_descriptions_of_manifests_are_read_and_code_in_them_is_not() -> None:
    text = "# Title.\n#\n#   kubectl apply -f nobody\n# Two\n# lines.\nkey: nobody\ndescription: One\n  more.\n"
    assert [passage.text for passage in of_yaml(text)] == ["Title.", "Two lines.", "One more."]
    assert [passage.text for passage in of_yaml("- label: What do you see?\n- name: not a label\n")] == [
        "What do you see?"
    ]


@pytest.mark.parametrize("word", ["told", "tells", "nobody", "somebody", "who", "whom", "anew"])
def test_the_check_finds_words_in_names_of_tests(tmp_path: Path, word: str) -> None:
    module = tmp_path / "test_module.py"
    module.write_text(
        f"def test_{word}_waits(): ...\n\nclass Test:\n    async def test_it_is_{word}(): ...\n\n"
        f"def test_whose_pod{word}_is_{word}s(): ...\ndef is_{word}(): ...\n"
    )
    assert [finding.partition(" in ")[0] for finding in findings(module)] == [f"1: «{word}»", f"4: «{word}»"]


@pytest.mark.parametrize(("sentence", "instead"), EXAMPLES)
def test_a_rule_finds_its_example(sentence: str, instead: str) -> None:
    assert [rule.instead for rule in RULES if rule.pattern.search(sentence)] == [instead]


def test_each_rule_has_an_example() -> None:
    assert [rule for rule in RULES if not any(rule.pattern.search(sentence) for sentence, _ in EXAMPLES)] == []


def test_second_words_are_those_of_the_glossary() -> None:
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+)` \| (.+) \|$", page.partition("## Words that are not written")[2], re.MULTILINE)
    matched = {word: [rule for rule in SECOND_WORDS if rule.pattern.fullmatch(word)] for word, _ in rows}
    assert [word for word, rules in matched.items() if len(rules) != 1] == []
    assert {rule for rules in matched.values() for rule in rules} == set(SECOND_WORDS)
    assert [matched[word][0].instead for word, _ in rows] == [term for _, term in rows]


CHECKED = {
    ".ci/run",
    ".dockerignore",
    ".editorconfig",
    ".github/CODEOWNERS",
    ".github/ISSUE_TEMPLATE/bug.yml",
    ".github/SECURITY.md",
    ".gitignore",
    ".pre-commit-config.yaml",
    "Dockerfile",
    "README.md",
    "docs/reference/glossary.md",
    "examples/01-single-gpu.yaml",
    "examples/plugins/cool-nodes/README.md",
    "examples/plugins/cool-nodes/pyproject.toml",
    "examples/plugins/cool-nodes/topo_cool_nodes/kernels.py",
    "manifests/base/rbac.yaml",
    "manifests/image/build-requirements.in",
    "manifests/image/lock.sh",
    "pyproject.toml",
    "tests/controlplane/README.md",
    "tests/controlplane/stages/pod.yaml",
    "tests/prose/test_names.py",
    "topo_scheduler/daemon.py",
    "topo_scheduler/simulation/demo.yaml",
    "topo_scheduler/simulation/report/assets/map.js",
    "topo_scheduler/simulation/report/assets/report.css",
    "tox.ini",
}
"""A file of each kind."""


def test_all_that_a_person_reads_is_checked() -> None:
    assert CHECKED - {str(path.relative_to(ROOT)) for path in files()} == set()


def test_code_blocks_code_and_targets_of_links_are_no_prose() -> None:
    text = "Run `nobody` and [read](nobody.md).\n\n```sh\nnobody\n```\n"
    assert not any(rule.pattern.search(passage.text) for passage in of_markdown(text) for rule in RULES)


def test_docstrings_comments_and_messages_are_read_and_keys_are_not() -> None:
    source = '"""Nobody reads this now."""\nkeys = ["nobody"]\nf = f"{keys} says that nobody comes here"  # nobody\n'
    texts = [passage.text for passage in of_python(source) if "nobody" in passage.text.lower()]
    assert sorted(texts) == ["Nobody reads this now.", "X says that nobody comes here", "nobody"]


def test_comments_of_following_lines_are_one_passage_and_items_and_tables_are_not() -> None:
    source = "# One\n# two.\n#\n# Three\n# - four\nx = 1  # five\n# six\n# tox -e a    seven\n"
    passages = [(passage.line, passage.text, passage.prose) for passage in of_python(source)]
    assert passages == [
        (1, "One two.", True),
        (4, "Three", True),
        (5, "- four", True),
        (6, "five", True),
        (7, "six", True),
        (8, "tox -e a    seven", False),
    ]
    assert [(passage.line, passage.text, passage.prose) for passage in of_settings(source)] == passages


def test_tables_in_messages_are_no_sentences_and_code_between_double_marks_is_no_prose() -> None:
    source = '"""Print ``a nobody\nb`` as a table.\n\n| nobody | x |\ntox -e a   measure\n"""'
    assert [(passage.text.strip(), passage.prose) for passage in of_python(source) if passage.text.strip()] == [
        ("| nobody | x |", False),
        ("tox -e a   measure", False),
        ("Print X as a table.", True),
    ]


def test_comments_and_messages_of_scripts_and_styles_are_read() -> None:
    text = "// 1\n// 2.\nx = 'it says that //nobody'; // isn't\n/* Three\nfour. */ y = 'nobody' + `five six seven ten`;"
    assert sorted(passage.text for passage in of_script(text)) == [
        "1 2.",
        "Three\nfour.",
        "five six seven ten",
        "isn't",
        "it says that //nobody",
    ]


def test_comments_descriptions_and_messages_of_settings_are_read() -> None:
    text = '#!/bin/sh\ndescription = what nobody else does here\necho "no #comment stands in here" ${x#y} # end\n'
    assert sorted(passage.text for passage in of_settings(text)) == [
        "end",
        "no #comment stands in here",
        "what nobody else does here",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "Nobody.\n"),
        ("bug.yml", "label: is there nobody else?\n"),
        ("pod.yaml", "# Nobody.\n"),
        ("module.py", "# Nobody.\n"),
        ("map.js", "// Nobody.\n"),
        ("report.css", "/* Nobody. */\n"),
        ("Dockerfile", "# Nobody.\n"),
        ("tox.ini", "description = Nobody.\n"),
    ],
)
def test_each_kind_of_file_has_its_reader(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert len(list(findings(tmp_path / name))) == 1


def test_sentences_end_at_marks() -> None:
    assert sentences("One here. Two; three: four!") == ["One here.", "Two;", "three:", "four!"]


def named_alike(modules: Iterable[Path]) -> list[list[str]]:
    """Return classes whose names are equal, or differ only by underscores and case."""
    named = defaultdict(list)
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                named[node.name.replace("_", "").lower()].append(f"{path}: {node.name}")
    return [classes for classes in named.values() if len(classes) > 1]


def test_each_class_has_a_name_of_its_own() -> None:
    assert named_alike((ROOT / "topo_scheduler").rglob("*.py")) == []


def test_names_that_differ_by_underscores_or_case_are_found(tmp_path: Path) -> None:
    (module := tmp_path / "module.py").write_text("class Pod: ...\nclass _Pod: ...\nclass POD: ...\nclass Node: ...\n")
    assert named_alike([module]) == [[f"{module}: {name}" for name in ("Pod", "_Pod", "POD")]]
