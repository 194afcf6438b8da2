"""What an experiment needs of stored steps and prompt sets beside answers: what a log says, copies switched, parts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Stored:
    """The data that ships, where copies made of it go, and how many prompts of each category are asked (None: all)."""

    data: Path
    own_runs: Path
    most: int | None = None

    def perplexity(self, run: str) -> float:
        """Of a stored step `RUN/step-NNNNN` on held-out tokens, from the log of its training."""
        folder, step = run.split("/step-")
        lines = (self.data / "checkpoints" / folder / "log.jsonl").read_text("utf-8").splitlines()
        said = [line for line in map(json.loads, lines) if line["kind"] == "validation" and line["step"] == int(step)]
        return said[-1]["perplexity"]["all"]

    def batches(self, run: str) -> list[float]:
        """MaxVio of the last training batches of a run, named by its last step."""
        from backend.lab.series import last_batches

        return last_batches(self.data / "checkpoints" / run.split("/")[0])

    def parameters(self, run: str) -> int:
        """How many numbers the routers of a stored step learn by gradient."""
        from analysis.lab.config import LabMoeConfig
        from analysis.lab.model import LabMoeForCausalLM, routers  # transformers is slow to import

        model = LabMoeForCausalLM(LabMoeConfig.from_pretrained(self.data / "checkpoints" / run))
        return sum(each.numel() for router in routers(model) for each in router.parameters())

    def identities(self, run: str) -> dict[str, float]:
        """How far the gradients of a step on the run's first stored batch are from their closed forms, in float64."""
        from analysis.lab.config import LabMoeConfig
        from analysis.lab.identities import gradient_identities
        from analysis.lab.model import LabMoeForCausalLM
        from backend.lab.batches import stored_batches
        from backend.lab.model_files import load_state
        from backend.lab.train import FIRST

        folder = self.data / "checkpoints" / run
        model = LabMoeForCausalLM(LabMoeConfig.from_pretrained(folder))
        model.load_state_dict(load_state(folder), strict=False)  # the head is the embedding, and stored once
        model.double().train().set_experts_implementation("eager")  # the others know no float64
        found = gradient_identities(model, next(stored_batches(folder.parent / FIRST)))
        return {name: float(getattr(found, name).max()) for name in ("router", "gate", "up", "mean_row")}

    def softened(self, run: str) -> str:
        """A copy of a stored step in which every expert serves."""
        from backend.lab.soften import soften

        target = self._copy(run, "softened")
        soften(self.data / "checkpoints" / run, target)
        return str(target)

    def as_experts(self, run: str) -> str:
        """A copy of a dense step as experts."""
        from backend.lab.dense_copies import as_copies

        target = self._copy(run, "as-experts")
        as_copies(self.data / "checkpoints" / run, target)
        return str(target)

    def part(self, prompts: str, category: str) -> str:
        """A file with the rows of one category."""
        return self._file(prompts, category)

    def asked(self, prompts: str | None) -> str | None:
        """A set that ships as it is asked: itself, or a file with the first few prompts of each category."""
        whole = prompts is None or self.most is None or not self._set(prompts).is_file()
        return prompts if whole else self._file(str(prompts))

    def _copy(self, run: str, how: str) -> Path:
        folder, step = run.split("/")
        return self.own_runs / f"{folder}-{how}" / step

    def _set(self, prompts: str) -> Path:
        return self.data / "prompts" / f"{prompts}.jsonl"

    def _file(self, prompts: str, category: str | None = None) -> str:
        seen: Counter[str] = Counter()
        own = []
        for row in self._set(prompts).read_text("utf-8").splitlines():
            of = json.loads(row)["category"]
            seen[of] += 1
            if category in (None, of) and (self.most is None or seen[of] <= self.most):
                own.append(row)
        folder = self.own_runs / "prompts"
        folder.mkdir(parents=True, exist_ok=True)
        parts = (prompts, category, "few" if self.most else None)
        file = folder / f"{'-'.join(part for part in parts if part)}.jsonl"
        file.write_text("\n".join(own) + "\n", "utf-8")
        return str(file)
