"""``python -m tests.controlplane build`` and ``python -m tests.controlplane up``."""

import argparse
import signal
import sys

from .binaries import PROGRAMS, ControlPlaneUnavailable, build
from .controlplane import ControlPlane


def main() -> int:
    """Do what the command line says."""
    options = _parser().parse_args()
    try:
        if options.command == "build":
            print(build(modules=PROGRAMS if options.oldest else ("go", "go-kwok")))
        else:
            _up(options)
    except ControlPlaneUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _up(options: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ControlPlane(
        version="oldest" if options.oldest else "current",
        with_kwok=options.kwok,
        with_scheduler=options.scheduler,
    ) as plane:
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        print(f"# logs in {plane.directory / 'logs'}; Ctrl-C ends everything", file=sys.stderr)
        signal.pause()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.controlplane", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build what is missing and print the directory")
    up = commands.add_parser("up", help="start a control plane and wait for Ctrl-C")
    for command in (building, up):
        command.add_argument("--oldest", action="store_true", help="the oldest supported kube-apiserver")
    up.add_argument("--kwok", action="store_true", help="with simulated kubelets")
    up.add_argument("--scheduler", action="store_true", help="with kube-scheduler")
    return parser


if __name__ == "__main__":
    sys.exit(main())
