"""Compile the UNet of Stable Diffusion: https://huggingface.co/docs/diffusers/optimization/fp16."""

import torch
from diffusers import DiffusionPipeline

pipeline = DiffusionPipeline.from_pretrained("stable-diffusion-v1-5/stable-diffusion-v1-5")
pipeline.unet.to(memory_format=torch.channels_last)
pipeline.unet = torch.compile(pipeline.unet, fullgraph=True)

prompt = "a photo of an astronaut riding a horse"
image = pipeline(prompt, num_inference_steps=3).images[0]
print("image", image.size)
