"""Fine-tune a classifier by Trainer with torch_compile=True: https://huggingface.co/docs/transformers/training."""

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("google-bert/bert-base-uncased")
model = AutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-uncased", num_labels=5)

texts = ["the food is good", "the process is slow", "plants create food", "special theory"]
encoded = tokenizer(texts, padding="max_length", max_length=16, truncation=True)


class Reviews(torch.utils.data.Dataset):
    def __len__(self):
        return len(texts)

    def __getitem__(self, index):
        item = {key: torch.tensor(values[index]) for key, values in encoded.items()}
        return {**item, "labels": torch.tensor(index % 5)}


training_args = TrainingArguments(
    output_dir="test_trainer",
    torch_compile=True,
    per_device_train_batch_size=2,
    num_train_epochs=1,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=training_args, train_dataset=Reviews())
print("loss", trainer.train().training_loss)
