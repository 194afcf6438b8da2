"""Which device models run on."""

from __future__ import annotations

from backend.errors import Refusal


def resolve_device(name: str) -> str:
    """`auto` becomes the first CUDA device, or the CPU; a device that is not there is refused."""
    import torch

    if name == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return name
    count = torch.cuda.device_count()
    if name not in ["cuda", *(f"cuda:{n}" for n in range(count))]:
        raise Refusal(
            f"MOE_GEOMETRY_DEVICE is {name!r}; this machine has cpu and {count} CUDA device(s). "
            "Use auto, cpu or cuda:N."
        )
    return name


def accelerators(device: str) -> tuple[int, ...]:
    """Bytes of each CUDA device of this machine; none where models run on the CPU, which asks no driver."""
    if device == "cpu":
        return ()
    import torch

    return tuple(torch.cuda.mem_get_info(n)[1] for n in range(torch.cuda.device_count()))
