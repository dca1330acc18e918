"""Embed sentences by a model of sentence-transformers, made here with random weights, and compiled."""

import torch
from ending import end
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "cache", "of", "compiled", "code", "picture", "cat"]
SENTENCES = ["a cache of compiled code", "a picture of a cat", "compiled code"]
LENGTH = 16


def make_model(folder: str) -> SentenceTransformer:
    """Write a BERT of two layers with a vocabulary of a few words into a folder, and load it."""
    torch.manual_seed(0)
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LENGTH, **special)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
    )
    BertModel(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    transformer = Transformer(folder)
    return SentenceTransformer(modules=[transformer, Pooling(64)], device="cpu")


def main() -> None:
    model = make_model("bert")
    model.compile()
    embeddings = model.encode(SENTENCES, convert_to_tensor=True, show_progress_bar=False)
    end([embeddings], ["sentence-transformers", "transformers"])


if __name__ == "__main__":
    main()
