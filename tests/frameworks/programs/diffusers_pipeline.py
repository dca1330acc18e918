"""Make a picture by a pipeline of Stable Diffusion with random weights, whose UNet compiles its repeated
blocks."""

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from ending import end

WORDS = 8
WIDTH = 32


def make_pipeline() -> StableDiffusionPipeline:
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=8,
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
    )
    return StableDiffusionPipeline(
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        unet=unet,
        scheduler=DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def main() -> None:
    pipeline = make_pipeline()
    pipeline.set_progress_bar_config(disable=True)
    pipeline.unet.compile_repeated_blocks(fullgraph=True)
    words = torch.randn(2, 1, WORDS, WIDTH)
    pictures = pipeline(
        prompt_embeds=words[0],
        negative_prompt_embeds=words[1],
        num_inference_steps=3,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
    ).images
    end([pictures], ["diffusers"])


if __name__ == "__main__":
    main()
