"""The image, built by carrying out the Dockerfile's own instructions into a folder, without a container engine.

Two things differ from a real build: the base image is this machine's system and Python, and only folders that the
system does not bring (such as /opt) can be written to.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .dockerfile import Ignore, Instruction, NotUnderstood, Stage, read_dockerfile
from .sandbox import Mount, Sandbox, base_python

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BASE_PROGRAMS = "/base-image/bin"
_BUILD_ARGUMENTS = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
)


class BuildFailed(RuntimeError):
    """An instruction failed; the message has it and what it said."""


@dataclass(frozen=True)
class Image:
    """The result of a stage: files under ``root``, and how to start it."""

    root: Path
    base_programs: Path
    environment: Mapping[str, str] = field(
        default_factory=lambda: {"PATH": f"{_BASE_PROGRAMS}:{_SYSTEM_PATH}"},
    )
    user: str = ""
    workdir: str = "/"
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    ports: Sequence[int] = ()

    def mounts(self, *, writable: bool) -> list[Mount]:
        """The image's own folders, over those of the system."""
        folders = [Mount(path, f"/{path.name}", writable) for path in sorted(self.root.iterdir())]
        return [Mount(self.base_programs, _BASE_PROGRAMS), *folders]


def build_image(context: Path, scratch: Path) -> Image:
    """Carry out the Dockerfile of ``context`` and return its last stage."""
    ignore = Ignore.read(context / ".dockerignore")
    programs = _base_programs(scratch / "base-image")
    images: dict[str, Image] = {}
    image = Image(scratch, programs)
    for number, stage in enumerate(read_dockerfile(context / "Dockerfile")):
        image = _start(stage, images, scratch / f"stage-{number}", programs)
        for instruction in stage.instructions:
            image = _carry_out(instruction, image, images, context, ignore)
        images[stage.name or str(number)] = image
    return image


def _base_programs(folder: Path) -> Path:
    """What python:3.x-slim has on its PATH."""
    folder.mkdir(parents=True)
    for name in ("python", "python3"):
        (folder / name).symlink_to(base_python())
    (folder / "pip").write_text(f'#!/bin/sh\nexec {base_python()} -m pip "$@"\n')
    (folder / "pip").chmod(0o755)
    return folder


def _start(stage: Stage, images: Mapping[str, Image], root: Path, programs: Path) -> Image:
    if stage.base not in images:
        (root / "opt").mkdir(parents=True)
        return Image(root, programs)
    shutil.copytree(images[stage.base].root, root, symlinks=True)
    return replace(images[stage.base], root=root)


def _carry_out(
    instruction: Instruction, image: Image, images: Mapping[str, Image], context: Path, ignore: Ignore
) -> Image:
    match instruction.name:
        case "ENV":
            values = {name: _expand(value, image.environment) for name, value in instruction.pairs().items()}
            return replace(image, environment={**image.environment, **values})
        case "WORKDIR":
            workdir = os.path.join("/", image.workdir, instruction.text)  # noqa: PTH118
            _inside(image, workdir).mkdir(parents=True, exist_ok=True)
            return replace(image, workdir=workdir)
        case "USER":
            return replace(image, user=instruction.text)
        case "EXPOSE":
            return replace(image, ports=[int(word) for word in instruction.words()])
        case "ENTRYPOINT":
            return replace(image, entrypoint=instruction.command(), command=())
        case "CMD":
            return replace(image, command=instruction.command())
        case "COPY":
            _copy(instruction, image, images, context, ignore)
        case "RUN":
            _run(instruction, image)
        case _:
            raise NotUnderstood(f"{instruction.name} {instruction.text}")
    return image


def _expand(value: str, environment: Mapping[str, str]) -> str:
    for name, known in environment.items():
        value = value.replace(f"${name}", known)
    if "$" in value:
        raise NotUnderstood(f"ENV value {value}")
    return value


def _inside(image: Image, path: str) -> Path:
    return image.root / path.lstrip("/")


def _copy(instruction: Instruction, image: Image, images: Mapping[str, Image], context: Path, ignore: Ignore) -> None:
    options, (*sources, target) = instruction.options()
    destination = _inside(image, os.path.join(image.workdir, target))  # noqa: PTH118
    if stage := options.pop("from", None):
        if options or len(sources) != 1:
            raise NotUnderstood(f"COPY {instruction.text}")
        shutil.copytree(_inside(images[stage], sources[0]), destination, symlinks=True, dirs_exist_ok=True)
        _round_times(destination)
        return
    if options:
        raise NotUnderstood(f"COPY {instruction.text}")
    for source in sources:
        copied = 0
        into_folder = target.endswith("/") or len(sources) > 1
        for path in _files(context / source):
            if ignore.excludes(path.relative_to(context).as_posix()):
                continue
            below = path.relative_to(context / source)
            to = destination / (path.name if into_folder and (context / source).is_file() else below)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, to)
            copied += 1
        if not copied:
            raise BuildFailed(f"COPY {source}: not there, or left out by .dockerignore")


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (below for below in sorted(path.rglob("*")) if below.is_file())


def _round_times(folder: Path) -> None:
    """Do to times what a layer does: it keeps whole seconds."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            seconds = int(path.stat().st_mtime)
            os.utime(path, (seconds, seconds))


def _run(instruction: Instruction, image: Image) -> None:
    passed = {name: value for name, value in os.environ.items() if name in _BUILD_ARGUMENTS or name.startswith("PIP_")}
    sandbox = Sandbox(
        mounts=image.mounts(writable=True),
        scratch=("/tmp", "/root"),
        environment={**passed, "HOME": "/root", **image.environment},
        network=True,
        workdir=image.workdir,
    )
    try:
        done = sandbox.run(["/bin/sh", "-c", instruction.text], timeout=500)
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"RUN {instruction.text}: not done after {error.timeout} s") from None
    if done.returncode:
        raise BuildFailed(f"RUN {instruction.text}: exit code {done.returncode}\n{done.stdout[-4000:]}")
