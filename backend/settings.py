"""Where things lie and how much may be used, read once from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from backend.errors import Refusal

MEBIBYTE = 1 << 20
Paging = Literal["auto", "never", "always"]
"""Whether checkpoints are run one layer at a time: those that do not fit, none, all."""
CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where a container reads its own limit of memory: cgroup version 2, then 1."""


@dataclass(frozen=True)
class Settings:
    """What one backend process needs to know of its surroundings."""

    data: Path = Path("data")
    store: Path = Path(".moe-geometry")
    host: str = "127.0.0.1"
    port: int = 8000
    device: str = "auto"
    extra_roots: tuple[Path, ...] = ()
    upload_cap: int = 64 * MEBIBYTE
    memory_budget: int = 4096 * MEBIBYTE
    paging: Paging = "auto"
    hub_token: str | None = field(default=None, repr=False)

    @property
    def shipped_checkpoints(self) -> Path:
        """The folder of RUN/step-NNNNN that comes with the repository."""
        return self.data / "checkpoints"

    @property
    def own_runs(self) -> Path:
        """Where `lab train`, `lab untrained` and exports are told to write."""
        return self.data / "runs"

    @property
    def checkpoint_roots(self) -> tuple[Path, ...]:
        """Folders a checkpoint may be read from: what ships, one's own runs and those named in MOE_GEOMETRY_ROOTS."""
        return (self.shipped_checkpoints, self.own_runs, *self.extra_roots)

    @property
    def shipped_prompts(self) -> Path:
        """The folder of *.jsonl that comes with the repository."""
        return self.data / "prompts"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Settings from MOE_GEOMETRY_* (and HF_TOKEN); raises `Refusal` naming a variable that is not as it must be."""
        env = os.environ if environment is None else environment

        def integer(name: str, default: int) -> int:
            text = env.get(name, "").strip()
            if text and not text.isdecimal():
                raise Refusal(f"{name} is {text!r}; it must be a whole number of zero or more.")
            return int(text) if text else default

        roots = tuple(Path(r).expanduser() for r in env.get("MOE_GEOMETRY_ROOTS", "").split(os.pathsep) if r.strip())
        return cls(
            data=Path(env.get("MOE_GEOMETRY_DATA") or cls.data),
            store=Path(env.get("MOE_GEOMETRY_STORE") or cls.store).expanduser(),
            host=env.get("MOE_GEOMETRY_HOST") or cls.host,
            port=integer("MOE_GEOMETRY_PORT", cls.port),
            device=env.get("MOE_GEOMETRY_DEVICE") or cls.device,
            extra_roots=roots,
            upload_cap=integer("MOE_GEOMETRY_UPLOAD_CAP", cls.upload_cap),
            memory_budget=integer("MOE_GEOMETRY_MEMORY", memory() // 2),
            paging=_paging(env.get("MOE_GEOMETRY_PAGING") or cls.paging),
            hub_token=env.get("HF_TOKEN") or None,
        )


def _paging(text: str) -> Paging:
    for known in get_args(Paging):
        if text == known:
            return known
    raise Refusal(f"MOE_GEOMETRY_PAGING is {text!r}; it must be {', '.join(get_args(Paging)[:-1])} or always.")


def memory(limits: tuple[Path, ...] = CONTAINER_LIMITS) -> int:
    """Bytes this process may have: the machine's, or what the container around it allows, if that is less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in limits:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():  # "max" says that there is none
            found.append(int(text))
    return min(found)
