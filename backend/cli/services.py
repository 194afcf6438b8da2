"""`moe-geometry up | serve`: the two services, as two processes that end together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import Annotated, Any

import typer

from backend.errors import Refusal
from backend.settings import Settings

FRONTEND_PORT = 8050
START_SECONDS = 180.0
GRACE_SECONDS = 3
KEEP_ALIVE_SECONDS = 30
"""Longer than any client keeps an idle connection (httpx 5 s, ours 2 s), so that none sends into one being closed."""
STOP_SECONDS = 20.0


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; loopback if left out.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 8000 if left out.")] = None,
) -> None:
    """Start the backend alone."""
    settings = Settings.from_environment()
    host, port = host or settings.host, port or settings.port
    _check_free(host, port)
    os.environ["MOE_GEOMETRY_HOST"], os.environ["MOE_GEOMETRY_PORT"] = host, str(port)
    import uvicorn

    # One worker: one process owns the store. An open event stream would hold a graceful stop for ever.
    options: dict[str, Any] = {"factory": True, "workers": 1, "log_level": "warning"}
    options |= {"timeout_graceful_shutdown": GRACE_SECONDS, "timeout_keep_alive": KEEP_ALIVE_SECONDS}
    uvicorn.run("backend.app:create_app", host=host, port=port, **options)


def up(
    port: Annotated[int, typer.Option(help="Port of the pages.")] = FRONTEND_PORT,
    backend_port: Annotated[int | None, typer.Option(help="Port of the API; 8000 if left out.")] = None,
    host: Annotated[str, typer.Option(help="Address the pages listen on.")] = "127.0.0.1",
) -> None:
    """Start backend and frontend, print the address, stop both on Ctrl-C."""
    settings = Settings.from_environment()
    api = backend_port or settings.port
    _check_free(host, port)
    _check_free("127.0.0.1", api)
    backend = [sys.executable, "-m", "backend.cli", "serve", "--host", "127.0.0.1", "--port", str(api)]
    frontend = [sys.executable, "-m", "uvicorn", "--factory", "frontend.app:create_app", "--host", host]
    frontend += ["--port", str(port), "--log-level", "warning"]
    frontend += ["--timeout-graceful-shutdown", str(GRACE_SECONDS)]
    environment = {**os.environ, "BACKEND_URL": f"http://127.0.0.1:{api}"}
    processes = [subprocess.Popen(command, env=environment) for command in (backend, frontend)]
    for asked in (signal.SIGINT, signal.SIGTERM):  # a shell starts background jobs with SIGINT ignored
        signal.signal(asked, _interrupt)
    try:
        if _listening(processes, ("127.0.0.1", api), (host, port)):
            typer.echo(f"moe-geometry is at http://{host}:{port}/ (Ctrl-C stops it)")
        ended = _first_end(processes)
        raise Refusal(f"The {('backend', 'frontend')[ended]} ended with exit code {processes[ended].returncode}.")
    except KeyboardInterrupt:
        typer.echo("stopping", err=True)
    finally:
        _stop(processes)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _check_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Refusal(
                f"Port {port} on {host} cannot be used ({error.strerror}); name another with --port."
            ) from error


def _listening(processes: list[subprocess.Popen], *addresses: tuple[str, int]) -> bool:
    """Wait until all of these listen; False if a process ended instead."""
    end = time.monotonic() + START_SECONDS
    waiting = list(addresses)
    while waiting:
        if any(process.poll() is not None for process in processes):
            return False
        if time.monotonic() > end:
            raise Refusal(f"Nothing listens on port {waiting[0][1]} after {START_SECONDS:.0f} seconds.")
        waiting = [address for address in waiting if not _listens(address)]
        time.sleep(0.2)
    return True


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=1).close()
    except OSError:
        return False
    return True


def _first_end(processes: list[subprocess.Popen]) -> int:
    while True:
        for number, process in enumerate(processes):
            if process.poll() is not None:
                return number
        time.sleep(0.3)


def _stop(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
