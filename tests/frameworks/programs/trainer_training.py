"""Train by the Trainer of Hugging Face, with cachesvc's callback, and print JSON: the report and a digest of
the weights."""

from ending import tell
from torch import nn
from training_job import BATCH, EPOCHS, FOLDER, RESUME, STEPS, dataset, make_model
from transformers import Trainer, TrainingArguments

from cachesvc_client.integrations.transformers import CacheCallback


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def forward(self, inputs, labels):
        logits = self.model(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    arguments = TrainingArguments(
        output_dir=str(FOLDER),
        torch_compile=True,
        use_cpu=True,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        save_strategy="epoch",
        report_to=[],
        remove_unused_columns=False,
        disable_tqdm=True,
        seed=0,
    )
    rows = [{"inputs": inputs, "labels": label} for inputs, label in dataset()]
    model = Classifier()
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[CacheCallback()])
    trainer.train(resume_from_checkpoint=str(FOLDER / f"checkpoint-{STEPS}") if RESUME else None)
    tell(model.parameters(), ["transformers", "accelerate"], {"steps": trainer.state.global_step})


if __name__ == "__main__":
    main()
