"""Classify an image by timm: https://huggingface.co/docs/timm/quickstart, with torch.compile."""

import timm
import torch

model = timm.create_model("resnet18.a1_in1k", pretrained=True)
model = model.eval()
model = torch.compile(model)

x = torch.randn(1, 3, 64, 64)
with torch.inference_mode():
    output = model(x)
probabilities = torch.nn.functional.softmax(output[0], dim=0)
values, indices = torch.topk(probabilities, 5)
print(indices.shape)
