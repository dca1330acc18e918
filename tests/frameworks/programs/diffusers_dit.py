"""Make pictures by a pipeline of DiT with random weights, whose transformer is compiled as a whole."""

import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel
from ending import end


def main() -> None:
    torch.manual_seed(0)
    transformer = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=16, num_layers=2, sample_size=8, out_channels=8
    )
    vae = AutoencoderKL(
        block_out_channels=(16,),
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",),
        up_block_types=("UpDecoderBlock2D",),
    )
    pipeline = DiTPipeline(transformer, vae, DDIMScheduler())
    pipeline.set_progress_bar_config(disable=True)
    pipeline.transformer = torch.compile(pipeline.transformer)
    random = torch.Generator().manual_seed(0)
    end([pipeline([1, 2], num_inference_steps=3, generator=random, output_type="pt").images], ["diffusers"])


if __name__ == "__main__":
    main()
