"""Expressions for every feature and error of the language, from the files of the folder beside this one, by feature.

``$A``, ``$O``, ``$R`` and ``$C`` stand for maps of attributes and of capacities. A line that begins with a space
continues the one above.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent / "expressions"
_SHORT = {
    "$A": 'device.attributes["gpu.example.com"]',
    "$C": 'device.capacity["gpu.example.com"]',
    "$O": 'device.attributes["other.example.com"]',
    "$R": 'device.attributes["resource.kubernetes.io"]',
}
_LONG = '"' + "ab," * 1_000 + '"'
_RANGE = "lists.range(500)"
_TEXTS = f'{_RANGE}.map(x, "abcdefghij" + string(x))'


def expressions() -> list[tuple[str, str]]:
    """Every expression with its feature."""
    rows: list[tuple[str, str]] = []
    for path in sorted(_FOLDER.glob("*.cel")):
        text = path.read_text(encoding="utf-8").rstrip("\n").replace("\n ", "\0 ")
        rows += [(path.stem, _expanded(line)) for line in text.split("\n")]
    return rows


def _expanded(line: str) -> str:
    for short, long in _SHORT.items():
        line = line.replace(short, long)
    return line.replace("\0", "\n")


def costly_expressions() -> list[str]:
    """Expressions whose cost depends on the size of a text or list."""
    texts, lists, numbers = (
        (_FOLDER / f"costly-{name}.txt").read_text(encoding="utf-8").splitlines()
        for name in ("texts", "lists", "numbers")
    )
    values = [text.replace("TEXT", _LONG) for text in texts]
    values += [f"cel.bind(x, {_LONG}, x == '{'a' * length}' || '{'b' * length}' != x)" for length in (10, 99, 100, 101)]
    values += [text.replace("LIST", _RANGE).replace("ITEM", "499") for text in (*lists, *numbers)]
    return values + [text.replace("LIST", _TEXTS).replace("ITEM", '"abcdefghij499"') for text in lists]
