"""Configuration from files: of a folder, the file that can't be read is named, with what to do."""

from pathlib import Path

import pytest

from topo_scheduler.api.config import ConfigError
from topo_scheduler.runtime.config_files import read_configuration

GOOD = """
apiVersion: topology.scheduler/v1alpha1
kind: TopologySchedulerConfig
spec: {}
"""


def _folder(path: Path, second: bytes) -> Path:
    """Return a folder with a file that is good, and b.yaml."""
    (path / "a.yaml").write_text(GOOD, encoding="utf-8")
    (path / "b.yaml").write_bytes(second)
    return path


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
@pytest.mark.parametrize("whole", [True, False], ids=["folder", "file"])
def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path, encoding: str, whole: bool) -> None:
    folder = _folder(tmp_path, (GOOD + "# Gr\u00fc\u00dfe").encode(encoding))
    with pytest.raises(ConfigError) as caught:
        read_configuration(folder if whole else folder / "b.yaml")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/b.yaml: line {5 if encoding == 'latin-1' else 1} is not UTF-8 text (")
    assert message.endswith("save it as UTF-8")


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path, encoding: str) -> str:
        if self.name == "b.yaml":
            raise PermissionError(13, "Permission denied", str(self))
        return GOOD

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/b\.yaml: Permission denied$"):
        read_configuration(_folder(tmp_path, b""))


def test_a_folder_without_files_and_a_file_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^{tmp_path}: no \.yaml or \.yml file in this folder$"):
        read_configuration(tmp_path)
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/absent: No such file or directory$"):
        read_configuration(tmp_path / "absent")
