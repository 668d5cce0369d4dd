#!/usr/bin/env bash
# Renews the lock files of the image, with hashes, for every platform and Python: bash manifests/image/lock.sh [--upgrade]
# Without --upgrade only what pyproject.toml no longer allows is changed. Needs uv (`pip install uv`).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export UV_CUSTOM_COMPILE_COMMAND='bash manifests/image/lock.sh'
options=(--quiet --universal --python-version 3.11 --generate-hashes --no-annotate "$@")
uv pip compile "${options[@]}" pyproject.toml --output-file manifests/image/requirements.txt
uv pip compile "${options[@]}" manifests/image/build-requirements.in --output-file manifests/image/build-requirements.txt
