"""The image, built once."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .image import Image, build_image
from .manifests import BASE, ROOT, resources
from .pod import Pod
from .sandbox import SandboxUnavailable, available_mode


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """What the Dockerfile makes."""
    try:
        available_mode()
    except SandboxUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"the image can't be checked: {error}")
        pytest.skip(f"the image was not checked: {error}")
    scratch = tmp_path_factory.mktemp("image")
    yield build_image(ROOT, scratch / "built")
    shutil.rmtree(scratch)  # 800 MB, which pytest would keep for three runs


@pytest.fixture
def pod(image: Image, tmp_path: Path) -> Pod:
    """A pod of the Deployment, as a random user."""
    return Pod(image, resources(BASE), tmp_path)
