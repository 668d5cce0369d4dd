"""Reads the configuration from files; imports nothing that a command which only reads them does not need."""

from pathlib import Path

from topo_scheduler.api.config import ConfigError, Configuration, load_configuration


def read_configuration(path: Path | None) -> Configuration:
    """Read a configuration file, or every ``*.yaml`` and ``*.yml`` of a folder, as a mounted ConfigMap is.

    Raises:
        ConfigError: what is wrong, with file and field; a file that can't be read too.
    """
    if path is None:
        return Configuration()
    try:
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml") and file.is_file())
            if not files:
                raise ConfigError(f"{path}: no .yaml file in this folder")
        else:
            files = [path]
        return load_configuration({str(file): file.read_text(encoding="utf-8") for file in files})
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: {error}") from error
