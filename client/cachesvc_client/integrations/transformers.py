"""Has a callback for the Trainer of Hugging Face, which trains by Accelerate:

    from cachesvc_client.integrations.transformers import CacheCallback

    arguments = TrainingArguments(torch_compile=True, ...)
    trainer = Trainer(model, arguments, callbacks=[CacheCallback("team/finetune")], ...)
    trainer.train()

The module imports transformers.
"""

from __future__ import annotations

from typing import Any

from .training import TrainingCache

try:
    from transformers import TrainerCallback
except ImportError:
    raise ImportError(
        "cachesvc_client.integrations.transformers needs transformers: pip install transformers accelerate"
    ) from None


class CacheCallback(TrainerCallback):  # type: ignore[misc]
    """Attaches when it is made, publishes after the first steps in mode ``readwrite``, and reports at the end
    of the training. It never makes a job fail.

    Args:
        name: ``namespace/name[:tag]``. By default CACHESVC_NAME.
        publish_after: After how many steps the job publishes, in mode ``readwrite``.
    """

    def __init__(self, name: str | None = None, *, publish_after: int = 2) -> None:
        self.cache = TrainingCache(name, publish_after=publish_after)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Count the step."""
        self.cache.step()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Publish what the rest of the job compiled, and report."""
        self.cache.end()
