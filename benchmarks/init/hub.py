"""Write the models that the programs load into a folder as the Hugging Face Hub's cache has them.

The weights are random and the models have two layers: nothing is downloaded. The programs name the models as
their examples do, and the libraries find them with ``HF_HUB_OFFLINE=1``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WORDS = """the a is of it and food good slow process plants create through theory special relativity states
photo an astronaut riding horse""".split()
REVISION = "0" * 40
LENGTH = 16
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
"""Sizes of each transformer."""


def main(hub: Path) -> None:
    """Write all models into the folder of a Hub's cache."""
    torch.manual_seed(0)
    for name, write in MODELS.items():
        home = hub / f"models--{name.replace('/', '--')}"
        (home / "refs").mkdir(parents=True)
        (home / "refs" / "main").write_text(REVISION)
        folder = home / "snapshots" / REVISION
        folder.mkdir(parents=True)
        write(folder)


def _tokenizer(folder: Path, length: int = LENGTH) -> int:
    """Write a tokenizer of whole words. Return the size of its vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    numbers = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
    tokens = {f"{name}_token": token for name, token in names.items()}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=length, bos_token="[CLS]", eos_token="[SEP]", **tokens
    ).save_pretrained(folder)
    return len(numbers)


def _sizes(folder: Path) -> dict[str, Any]:
    return {"vocab_size": _tokenizer(folder), **SIZES}


def _bert(folder: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    BertForMaskedLM(BertConfig(**_sizes(folder), max_position_embeddings=LENGTH)).save_pretrained(folder)


def _vit(folder: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    ViTForImageClassification(ViTConfig(**SIZES, image_size=32, patch_size=16)).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)


def _gemma(folder: Path) -> None:
    from transformers import GemmaConfig, GemmaForCausalLM

    config = GemmaConfig(**_sizes(folder), num_key_value_heads=1, head_dim=16, max_position_embeddings=64)
    config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, 2, None
    GemmaForCausalLM(config).save_pretrained(folder)


def _sentences(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    _bert(folder)
    SentenceTransformer(modules=[Transformer(str(folder)), Pooling(64)], device="cpu").save(str(folder))


def _autoencoder() -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
    )


def _stable_diffusion(folder: Path) -> None:
    from diffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel

    words = folder / "tokenizer"
    size = _tokenizer(words)
    text = CLIPTextConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
    )
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
    )
    StableDiffusionPipeline(
        vae=_autoencoder(),
        text_encoder=CLIPTextModel(text),
        tokenizer=AutoTokenizer.from_pretrained(words),
        unet=unet,
        scheduler=DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)


def _resnet(folder: Path) -> None:
    import timm
    from safetensors.torch import save_file

    save_file(timm.create_model("resnet18").state_dict(), folder / "model.safetensors")


MODELS: dict[str, Callable[[Path], None]] = {
    "google/vit-base-patch16-224": _vit,
    "google-bert/bert-base-uncased": _bert,
    "google/gemma-2b": _gemma,
    "sentence-transformers/all-MiniLM-L6-v2": _sentences,
    "stable-diffusion-v1-5/stable-diffusion-v1-5": _stable_diffusion,
    "timm/resnet18.a1_in1k": _resnet,
}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
