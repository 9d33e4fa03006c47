"""What files of the course were called before: each former name, and the present one.

A student's copy follows them (`working_copy.update`). Names are without folders, as a deeper half
has the name of its lesson.
"""

from __future__ import annotations

FORMER_NAMES = {
    "02_auto_parallelism.ipynb": "03_auto_parallelism.ipynb",
    "03_multi_gpu_from_scratch.ipynb": "04_multi_gpu_from_scratch.ipynb",
    "04_multi_gpu_concise.ipynb": "05_multi_gpu_concise.ipynb",
    "05_distributed_sgd.ipynb": "06_distributed_sgd.ipynb",
    "06_pipelining.ipynb": "07_pipelining.ipynb",
    "07_channel_and_hybrid.ipynb": "08_channel_parallelism.ipynb",
    "08_also_asked.ipynb": "11_also_asked.ipynb",
    "09_challenges.ipynb": "10_challenges.ipynb",
    "lesson01.py": "hardware.py",
    "lesson02.py": "auto_parallelism.py",
    "lesson03.py": "multi_gpu_from_scratch.py",
    "lesson04.py": "multi_gpu_concise.py",
    "lesson05.py": "distributed_sgd.py",
    "lesson06.py": "pipelining.py",
    "lesson07.py": "channel_parallelism.py",
}


def former(name: str) -> list[str]:
    """What a file of this name was called before."""
    return [old for old, new in FORMER_NAMES.items() if new == name]
