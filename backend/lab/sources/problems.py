"""Mathematics: word and number problems made by the generators of reasoning-gym (Apache-2.0).

The generators of `PRACTISED` make training and validation documents; those of `UNSEEN` make prompts alone, because
two problems of one generator share its sentences.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from backend.lab.document import Document, Source
from backend.lab.sources import fetch

PACKAGE, VERSION = "reasoning-gym", "0.1.25"
PRACTISED = {
    "gsm_symbolic": 3_000,
    "advanced_geometry": 200,
    "basic_arithmetic": 650,
    "calendar_arithmetic": 350,
    "chain_sum": 350,
    "complex_arithmetic": 400,
    "count_primes": 150,
    "decimal_arithmetic": 200,
    "fraction_simplification": 400,
    "gcd": 400,
    "intermediate_integration": 100,
    "lcm": 400,
    "leg_counting": 550,
    "polynomial_equations": 250,
    "polynomial_multiplication": 150,
    "prime_factorization": 350,
    "products": 350,
    "simple_equations": 1_000,
    "simple_geometry": 250,
    "simple_integration": 150,
    "time_intervals": 350,
}
UNSEEN = (
    "base_conversion", "bitwise_arithmetic", "cryptarithm", "dice", "manipulate_matrix", "number_filtering",
    "number_format", "power_function", "puzzle24", "rotate_matrix", "survo", "syllogism",
)  # fmt: skip
UNSEEN_EACH = 20

# Runs in a process of its own, so that reasoning-gym's dependencies never enter this environment.
GENERATE = """
import json, sys
import reasoning_gym
for kind, size in json.load(sys.stdin)["sizes"].items():
    for index, item in enumerate(reasoning_gym.create_dataset(kind, size=size, seed=int(sys.argv[1]))):
        print(json.dumps([kind, index, item["question"], str(item["answer"])]))
"""


def read(folder: Path, seed: int = 0) -> Source:
    """Install reasoning-gym into `folder` and return the problems of one seed."""
    path = fetch.installed(PACKAGE, VERSION, folder)
    sizes = PRACTISED | dict.fromkeys(UNSEEN, UNSEEN_EACH)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GENERATE, str(seed)],
        input=json.dumps({"sizes": sizes}),
        env=os.environ | {"PYTHONPATH": str(path), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise fetch.SourceMissing(f"reasoning-gym could not make its problems: {done.stderr.strip()[-400:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    documents, unseen = {}, {}
    for kind, index, question, answer in rows:
        if kind in PRACTISED:
            text = f"{question.strip()}\nAnswer: {answer.strip()}"
            documents.setdefault(text, Document(PACKAGE, f"{kind}/{index}", text))
        else:
            unseen.setdefault(question, Document(PACKAGE, f"{kind}/{index}", question.strip()))
    return Source(PACKAGE, "mathematics", VERSION, "Apache-2.0", tuple(documents.values()), tuple(unseen.values()))
