"""Many forward passes of one model that go through it side by side: all through a layer before any enters the next.

Each pass is the model's own forward, on a thread of its own that waits before every layer; one thread runs at a time.
So whatever a model passes from layer to layer (masks, positions, states of routers) is where it always is, in the
frames of its own code, and no loop over layers is written twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from backend.paging.skeleton import WHOLE, Unpageable

STACK = 4 << 20
"""Bytes of a waiting thread's stack: glibc's 8 MB for each of hundreds would count against a limit."""


class _Abandoned(BaseException):
    """Unwinds a waiting pass that nobody will go on with."""


@dataclass(eq=False)
class Walk:
    """One forward pass. `around` is entered before each layer and left after it, on the pass's own thread.

    `at` is the layer it waits before, the number of layers once it is through. `given` is what that layer is called
    with, `last` what the layer before it returned, `result` what the pass came to.
    """

    call: Callable[[], Any]
    around: Callable[[int], AbstractContextManager[Any]]
    at: int = -1
    given: tuple[Any, Any] | None = None
    last: Any = None
    result: Any = None
    error: BaseException | None = None
    owner: Lockstep | None = None
    inside: ExitStack = field(default_factory=ExitStack)
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    back: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    thread: threading.Thread | None = None


_HERE = threading.local()


class Lockstep:
    """Walks through the layers of a model, in step. A context: leaving it ends what still waits.

    With `done` layers behind them, walks are handed what the last of these gave (`last`) instead of running them.
    """

    def __init__(self, layers: Sequence[nn.Module], walks: Sequence[Walk], done: int = 0):
        self._layers, self.walks, self._done = layers, walks, done
        self._hooks = ExitStack()
        self._over = False

    def __enter__(self) -> Lockstep:
        for index, layer in enumerate(self._layers):
            for hook in (
                # Before anything that looks at the layer: it may have no weights until we have waited.
                layer.register_forward_pre_hook(self._before(index), with_kwargs=True, prepend=True),
                layer.register_forward_hook(self._after(index)),
            ):
                self._hooks.callback(hook.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        for walk in self.walks:
            if walk.thread is not None and walk.thread.is_alive():
                walk.go.release()
                walk.thread.join()
        self._hooks.close()

    def start(self, walk: Walk) -> None:
        """Run it up to the first layer that is still to do."""
        walk.owner = self
        before = threading.stack_size(STACK)
        try:
            walk.thread = threading.Thread(target=self._run, args=(walk,), daemon=True, name="paging-walk")
            walk.thread.start()
        finally:
            threading.stack_size(before)
        with ExitStack() as stack:
            for layer in self._layers[: self._done]:
                stack.enter_context(_handing(layer, walk))
            self.step(walk)

    def step(self, walk: Walk) -> None:
        """Run it through the layer it waits before, up to the next or to its end; raises what it raised."""
        walk.go.release()
        walk.back.acquire()
        if walk.error is not None:
            raise walk.error

    def _run(self, walk: Walk) -> None:
        _HERE.walk = walk
        walk.go.acquire()
        try:
            if not self._over:
                walk.result = walk.call()
                walk.at, walk.given, walk.last = len(self._layers), None, None
        except _Abandoned:
            pass
        except BaseException as error:
            walk.error = error
        finally:
            walk.inside.close()
            walk.back.release()

    def _before(self, index: int) -> Callable[..., None]:
        def wait(layer: nn.Module, args: Any, kwargs: Any) -> None:
            walk = getattr(_HERE, "walk", None)
            if walk is None or walk.owner is not self or index < self._done:
                return
            if index <= walk.at:
                raise Unpageable(f"layer {index} runs again after layer {walk.at} in one pass: {WHOLE}.")
            walk.at, walk.given = index, (args, kwargs)
            walk.back.release()
            walk.go.acquire()
            if self._over:
                raise _Abandoned
            walk.given = walk.last = None
            walk.inside.enter_context(walk.around(index))

        return wait

    def _after(self, index: int) -> Callable[..., None]:
        def leave(layer: nn.Module, args: Any, output: Any) -> None:
            walk = getattr(_HERE, "walk", None)
            if walk is None or walk.owner is not self or index < self._done:
                return
            walk.inside.close()
            walk.last = output

        return leave


@contextmanager
def _handing(layer: nn.Module, walk: Walk) -> Iterator[None]:
    """For the length of a start, a layer that was run before returns to this walk what the last of them gave."""
    handed: Any = layer
    handed.forward = lambda *args, **kwargs: walk.last
    try:
        yield
    finally:
        del handed.forward
