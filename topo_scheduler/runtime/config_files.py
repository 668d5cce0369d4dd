"""Reads the configuration from files. Imports little, so that commands that only read files start quickly."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from topo_scheduler.api.config import ConfigError, Configuration, load_configuration

EMPTY: Final = (
    "no configuration in it; if every field is to have its default, write a document of kind TopologySchedulerConfig"
    " without spec"
)
"""Why an empty configuration is refused: an edit that empties it by mistake would end quotas and recovery."""


def read_configuration(path: Path | None) -> Configuration:
    """Read a configuration file, or every ``*.yaml`` and ``*.yml`` of a folder, such as a mounted ConfigMap.

    Raises:
        ConfigError: the configuration is invalid, with file and field, or empty, or a file can't be read.
    """
    if path is None:
        return Configuration()
    return load_filled(str(path), {str(file): _text(file) for file in _files(path)})


def load_filled(origin: str, documents: Mapping[str, str]) -> Configuration:
    """Read configuration from YAML texts, by the names of their sources; ``origin`` names all of them.

    Raises:
        ConfigError: the configuration is invalid, or empty.
    """
    configuration = load_configuration(documents)
    if not configuration.kinds:
        raise ConfigError(f"{origin}: {EMPTY}")
    return configuration


def _files(path: Path) -> list[Path]:
    """Return the file itself, or the YAML files of a folder.

    Raises:
        ConfigError: the folder has no YAML file, or can't be read.
    """
    try:
        if not path.is_dir():
            return [path]
        files = sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml") and file.is_file())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    if not files:
        raise ConfigError(f"{path}: no .yaml or .yml file in this folder")
    return files


def _text(file: Path) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: it can't be read, or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}: line {line} is not UTF-8 text ({error}); save it as UTF-8") from error
