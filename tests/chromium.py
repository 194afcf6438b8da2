"""Where the tests' browser lies, and how it gets onto a Debian machine: `python -m tests.chromium --install`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLACES = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
DOWNLOADED = ("chromium-*/chrome-linux*/chrome", "chromium-*/chrome-mac*/*.app/Contents/MacOS/*")
# Chromium alone draws no letters on a machine without fonts; Playwright's own node does not start without libatomic.
PACKAGES = ("chromium", "fonts-dejavu-core", "fonts-dejavu-extra", "libatomic1")
MISSING = (
    "No Chromium found. Bring Chromium or Chrome with your package manager (Fedora: dnf install chromium; macOS: "
    "brew install --cask chromium; Debian as root: make test installs it), run `.venv/bin/playwright install chromium` "
    "or set CHROMIUM=/path/to/it."
)


def find() -> Path | None:
    """The first Chromium of: $CHROMIUM, the commands on PATH, the usual places, Playwright's own downloads."""
    named = os.environ.get("CHROMIUM")
    if named:
        return Path(named)
    for command in COMMANDS:
        if found := shutil.which(command):
            return Path(found)
    places = [Path(place) for place in PLACES]
    for cache in (Path.home() / ".cache/ms-playwright", Path.home() / "Library/Caches/ms-playwright"):
        places += [path for pattern in DOWNLOADED for path in sorted(cache.glob(pattern))]
    return next((place for place in places if place.is_file()), None)


def driven() -> bool:
    """Whether Playwright's driver starts here: a bare machine may lack a library of it."""
    return subprocess.run([sys.executable, "-m", "playwright", "--version"], capture_output=True).returncode == 0


def install() -> None:
    """Install Debian's Chromium; only as root on Debian, where that is one command."""
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-qq"]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    print("installing Chromium for the browser tests", flush=True)
    subprocess.run([*apt, "update"], env=environment, stdin=subprocess.DEVNULL, check=True)
    subprocess.run(
        [*apt, "install", "-y", "--no-install-recommends", *PACKAGES],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def main() -> None:
    """Exit 0 with a browser on the machine, else 1 with the sentence that says how to bring one."""
    on_debian_as_root = Path("/etc/debian_version").exists() and hasattr(os, "geteuid") and os.geteuid() == 0
    if not (find() and driven()) and "--install" in sys.argv and on_debian_as_root:
        install()
    if not find():
        sys.exit(MISSING)
    if not driven():
        sys.exit("Playwright's driver does not start: `.venv/bin/playwright --version` says what it lacks.")


if __name__ == "__main__":
    main()
