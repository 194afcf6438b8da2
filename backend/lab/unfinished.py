"""A run that is not at its end, kept on disk to go on from after a kill: weights, optimiser, routers, random state.

Where it stands in the data is its step: the order of batches is the seed's.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from accelerate import Accelerator


@dataclass(frozen=True)
class Unfinished:
    """A folder of what is kept, anew every so many steps; the last is not removed before the next is whole."""

    folder: Path
    every: int

    @property
    def step(self) -> int:
        """The last step it was kept at; 0 if nothing was."""
        return max(self._kept(), default=0)

    def keep(self, accelerator: Accelerator, step: int) -> None:
        """Keep the run as it stands after `step`, if it is time to; every process must ask."""
        if step % self.every:
            return
        partial = self.folder / f".{step}"
        if accelerator.is_main_process:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        accelerator.wait_for_everyone()
        accelerator.save_state(str(partial))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            before = self._kept()
            partial.rename(self.folder / str(step))
            for old in before:
                shutil.rmtree(self.folder / str(old))

    def restore(self, accelerator: Accelerator) -> int:
        """Put what was kept into the prepared model and optimiser; the step, 0 if there is nothing."""
        step = self.step
        if step:
            accelerator.load_state(str(self.folder / str(step)))
        return step

    def forget(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kept(self) -> list[int]:
        return [int(path.name) for path in self.folder.glob("*") if path.name.isdigit()]
