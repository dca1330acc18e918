"""Forms of models, most of them of transformers."""

import torch
from torch import nn

from .form import form, values

MODELS = "models"
TINY = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def tokens(*shape):
    return (torch.arange(torch.Size(shape).numel()) % 50 + 1).reshape(shape)


@form(MODELS)
def bert():
    """BERT with a mask"""
    from transformers import BertConfig, BertModel

    model = torch.compile(BertModel(BertConfig(vocab_size=64, **TINY)).eval())
    with torch.no_grad():
        ids = tokens(2, 8)
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state


def llama_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(vocab_size=64, pad_token_id=0, eos_token_id=63, **TINY)).eval()


@form(MODELS)
def llama():
    """Llama, logits of a prompt"""
    model = torch.compile(llama_model())
    with torch.no_grad():
        return model(input_ids=tokens(1, 8), use_cache=False).logits


@form(MODELS)
def generate_static_cache():
    """`generate` with a static cache: its forward is compiled by transformers"""
    from transformers import CompileConfig

    model = llama_model()
    config = CompileConfig(mode="default", fullgraph=True)
    config._compile_all_devices = True
    output = model.generate(
        tokens(1, 8), max_new_tokens=4, do_sample=False, cache_implementation="static", compile_config=config
    )
    return output.float()


@form(MODELS)
def generate_compiled_forward():
    """`model.forward = torch.compile(model.forward)`, then `generate`"""
    model = llama_model()
    model.forward = torch.compile(model.forward)
    return model.generate(tokens(1, 8), max_new_tokens=3, do_sample=False).float()


@form(MODELS)
def t5():
    """T5, encoder and decoder"""
    from transformers import T5Config, T5Model

    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    model = torch.compile(T5Model(config).eval())
    with torch.no_grad():
        return model(input_ids=tokens(1, 8), decoder_input_ids=tokens(1, 4)).last_hidden_state


@form(MODELS)
def vit():
    """ViT"""
    from transformers import ViTConfig, ViTModel

    model = torch.compile(ViTModel(ViTConfig(image_size=16, patch_size=8, **TINY)).eval())
    with torch.no_grad():
        return model(values(1, 3, 16, 16)).last_hidden_state


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))

    def forward(self, x):
        return self.layers(x).flatten(1)


@form(MODELS)
def convolutional():
    """convolution, BatchNorm, pooling, channels last"""
    model = torch.compile(Convolutional().eval().to(memory_format=torch.channels_last))
    with torch.no_grad():
        return model(values(1, 3, 8, 8).to(memory_format=torch.channels_last))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x):
        return self.layer(x)


@form(MODELS)
def encoder_layer():
    """`nn.TransformerEncoderLayer`"""
    with torch.no_grad():
        return torch.compile(Attention().eval())(values(1, 4, 16))


def attends(q, k, v):
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@form(MODELS)
def attention():
    """`scaled_dot_product_attention`"""
    return torch.compile(attends)(*(values(1, 2, 4, 8) for _ in range(3)))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        return sum(weights[:, number, None] * expert(x) for number, expert in enumerate(self.experts))


@form(MODELS)
def experts():
    """a mixture of experts, all of them called"""
    with torch.no_grad():
        return torch.compile(Experts())(values(4, 8))


@form(MODELS)
def quantized():
    """`quantize_dynamic`"""
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8)), {nn.Linear})
    with torch.no_grad():
        return torch.compile(model)(values(4, 8))


@torch.library.custom_op("forms::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)


def calls_operator(x):
    return twice(x @ x.T)


@form(MODELS)
def custom_operator():
    """`torch.library.custom_op`"""
    return torch.compile(calls_operator)(values(4, 8))


def conditional(x):
    return torch.cond(x.sum() > 0, lambda y: y @ y, lambda y: y @ y @ y, (x,))


@form(MODELS)
def condition():
    """`torch.cond`"""
    return torch.compile(conditional)(values(8, 8) + 1)
