"""Define the models of the matrix: architectures of libraries with random, seeded weights; nothing is
downloaded.

Each factory builds on the current default device and answers a module in evaluation mode. Weights are drawn
on the device itself, so that a model of 7B parameters is there in a second.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from torch import nn


def llama(
    layers: int,
    width: int,
    heads: int = 16,
    inner: int = 0,
    vocabulary: int = 32000,
    activation: str = "silu",
) -> nn.Module:
    """Build a decoder with grouped attention, without a cache of keys."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 8),
        intermediate_size=inner or width * 11 // 4,
        vocab_size=vocabulary,
        hidden_act=activation,
        use_cache=False,
    )
    return LlamaForCausalLM(config).eval()


def qwen3(layers: int, width: int, heads: int = 16, inner: int = 3072, vocabulary: int = 151936) -> nn.Module:
    """Build Qwen3's decoder: normalised queries and keys, heads of 128."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=128,
        intermediate_size=inner,
        vocab_size=vocabulary,
        use_cache=False,
    )
    return Qwen3ForCausalLM(config).eval()


def bert(layers: int, width: int, heads: int = 12, dropout: float = 0.0) -> nn.Module:
    """Build an encoder. It has no dropout, so that a training step can be compared."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return BertModel(config, add_pooling_layer=False).eval()


def t5(layers: int, width: int, heads: int = 8) -> nn.Module:
    """Build T5's encoder, with its relative positions."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        d_model=width,
        d_kv=width // heads,
        d_ff=4 * width,
        num_layers=layers,
        num_heads=heads,
        use_cache=False,
    )
    return T5EncoderModel(config).eval()


def mixtral(
    layers: int, width: int, heads: int = 16, inner: int = 0, vocabulary: int = 32000, experts: int = 8
) -> nn.Module:
    """Build Mixtral's decoder: of the experts of a layer, a router chooses two for each token."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        intermediate_size=inner or width * 7 // 2,
        vocab_size=vocabulary,
        num_local_experts=experts,
        use_cache=False,
    )
    return MixtralForCausalLM(config).eval()


def gat(layers: int, width: int, features: int = 64) -> nn.Module:
    """Build a graph attention network of PyTorch Geometric."""
    from torch_geometric.nn import GAT

    return GAT(features, width, layers, out_channels=16).eval()


def vit(layers: int, width: int, heads: int = 16) -> nn.Module:
    """Build a vision transformer on images of 224 x 224."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width
    )
    return ViTModel(config, add_pooling_layer=False).eval()


def resnet(depths: tuple[int, ...], width: int = 64) -> nn.Module:
    """Build a residual network of bottleneck blocks; depths 3, 4, 23, 3 make ResNet-101."""
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = [width * 4 * 2**stage for stage in range(len(depths))]
    config = ResNetConfig(embedding_size=width, hidden_sizes=sizes, depths=list(depths), num_labels=1000)
    return ResNetForImageClassification(config).eval()


def dit(layers: int, heads: int = 16, head_dim: int = 72) -> nn.Module:
    """Build a diffusion transformer (DiT-XL's width by default) over latents of 32 x 32."""
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(
        num_attention_heads=heads, attention_head_dim=head_dim, num_layers=layers, sample_size=32
    ).eval()


def unet(channels: tuple[int, ...], width: int = 768) -> nn.Module:
    """Build a diffusion UNet with cross attention over latents of 32 x 32."""
    from diffusers import UNet2DConditionModel

    down = ("CrossAttnDownBlock2D",) * (len(channels) - 1) + ("DownBlock2D",)
    up = ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * (len(channels) - 1)
    return UNet2DConditionModel(
        sample_size=32,
        block_out_channels=channels,
        layers_per_block=1,
        down_block_types=down,
        up_block_types=up,
        cross_attention_dim=width,
    ).eval()
