"""Fill a mask: https://huggingface.co/docs/transformers/model_doc/bert, with torch.compile."""

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("google-bert/bert-base-uncased")
model = AutoModelForMaskedLM.from_pretrained("google-bert/bert-base-uncased", attn_implementation="sdpa")
model.compile()

inputs = tokenizer("plants create [MASK] through a process", return_tensors="pt")

with torch.no_grad():
    predictions = model(**inputs).logits

masked_index = torch.where(inputs["input_ids"] == tokenizer.mask_token_id)[1]
print("the predicted token is", tokenizer.decode(predictions[0, masked_index].argmax(dim=-1)))
