"""Classify an image: https://huggingface.co/docs/transformers/perf_torch_compile."""

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8))

processor = AutoImageProcessor.from_pretrained("google/vit-base-patch16-224")
model = AutoModelForImageClassification.from_pretrained("google/vit-base-patch16-224")
model = torch.compile(model)

processed_input = processor(image, return_tensors="pt")

with torch.no_grad():
    logits = model(**processed_input).logits
print("class", int(logits.argmax(-1)))
