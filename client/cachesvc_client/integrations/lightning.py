"""Has a callback for Lightning:

    from cachesvc_client.integrations.lightning import CacheCallback

    module.model.compile()  # the network inside of the LightningModule
    trainer = Trainer(callbacks=[CacheCallback("team/finetune")])
    trainer.fit(module, batches)

The module imports Lightning, as `lightning` or as `pytorch_lightning`.
"""

from __future__ import annotations

from typing import Any

from .training import TrainingCache

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError:
        raise ImportError(
            "cachesvc_client.integrations.lightning needs Lightning: pip install lightning"
        ) from None


class CacheCallback(Callback):  # type: ignore[misc]
    """Attaches when it is made, publishes after the first batches in mode ``readwrite``, and reports at the
    end of ``fit``. It never makes a job fail.

    Args:
        name: ``namespace/name[:tag]``. By default CACHESVC_NAME.
        publish_after: After how many batches of training the job publishes, in mode ``readwrite``.
    """

    def __init__(self, name: str | None = None, *, publish_after: int = 2) -> None:
        super().__init__()
        self.cache = TrainingCache(name, publish_after=publish_after)

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Attach a process that Lightning started for a rank."""
        self.cache.attach()

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Count the batch."""
        self.cache.step()

    def on_fit_end(self, *args: Any, **kwargs: Any) -> None:
        """Publish what the rest of the job compiled, and report."""
        self.cache.end()
