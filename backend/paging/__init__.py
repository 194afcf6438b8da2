"""Models larger than memory: one decoder layer of weights at a time, all prompts through it, then the next.

`choice` says which checkpoints, `opening` builds one, `sweep` captures it; `runners/paged.py` runs a task with it.
"""
