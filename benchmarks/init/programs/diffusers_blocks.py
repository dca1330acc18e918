"""Compile the repeated blocks of a UNet: https://huggingface.co/docs/diffusers/optimization/fp16."""

import torch
from diffusers import StableDiffusionPipeline

pipeline = StableDiffusionPipeline.from_pretrained("stable-diffusion-v1-5/stable-diffusion-v1-5")
pipeline.unet.compile_repeated_blocks(fullgraph=True)

generator = torch.manual_seed(33)
images = pipeline("a photo of an astronaut", num_inference_steps=3, generator=generator).images
print("images", len(images))
