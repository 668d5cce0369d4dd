"""``python -m tests.differential.devices.upstream``: record Kubernetes' table of allocator tests, for the tests here.

It needs Go and the Go module proxy. The table is in an internal package, so it is run inside a copy of its module, with
record_test.go as the allocator that is tested: a new version of Kubernetes needs a new number in go.mod, and this.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.controlplane.binaries import HERE
from tests.differential.choices import Json

from . import PATH

MODULE: Final = "k8s.io/dynamic-resource-allocation"
PACKAGE: Final = "structured/internal/recording"
RECORDER: Final = Path(__file__).with_name("record_test.go")
LEFT_OUT: Final = "interrupt/"
"""Tests of contexts that end, which are not about what is allocated."""


def version() -> str:
    """The version of the module that kube-allocator is built with."""
    match = re.search(rf"^\s*{re.escape(MODULE)} (v\S+)", (HERE / "go" / "go.mod").read_text(), re.MULTILINE)
    assert match is not None
    return match[1]


def record(folder: Path) -> list[Json]:
    """Run the table in a copy of its module, and return its cases by name."""
    downloaded = subprocess.run(
        ["go", "mod", "download", "-json", f"{MODULE}@{version()}"], check=True, capture_output=True, cwd=HERE / "go"
    )
    module = folder / "module"
    shutil.copytree(json.loads(downloaded.stdout)["Dir"], module)
    for path in (module, *module.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)  # a module cache cannot be written to
    (module / PACKAGE).mkdir()
    shutil.copy(RECORDER, module / PACKAGE)
    records = folder / "records"
    records.mkdir()
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "RECORD_FOLDER": str(records)}
    subprocess.run(["go", "test", "-trimpath", "-count=1", f"./{PACKAGE}/"], check=True, cwd=module, env=environment)
    records_read = [json.loads(path.read_text()) for path in sorted(records.iterdir())]
    for each in records_read:
        each["name"] = each["name"].removeprefix("TestRecord/")
        each["node"]["status"] = {}
    return [each for each in records_read if not each["name"].startswith(LEFT_OUT)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cases = record(Path(folder))
    source = f"{MODULE} {version()}, structured/internal/allocatortesting, Apache License 2.0"
    content = json.dumps({"source": source, "cases": cases}, separators=(",", ":"), sort_keys=True)
    PATH.write_bytes(gzip.compress(content.encode(), mtime=0))
    print(f"{len(cases)} cases in {PATH}")


if __name__ == "__main__":
    main()
