"""Generate tokens by Hugging Face `generate` with a static cache, for which it compiles the decode step."""

import torch
from ending import end
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import CompileConfig

CONFIG = LlamaConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
)


def main() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    prompt = torch.arange(1, 17).reshape(2, 8)
    compiling = CompileConfig(mode="default", fullgraph=False)
    # `generate` compiles by itself on accelerators alone; this asks it to on a CPU.
    compiling._compile_all_devices = True
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=12,
        do_sample=False,
        cache_implementation="static",
        compile_config=compiling,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    end([tokens.sequences, *tokens.logits], ["transformers"])


if __name__ == "__main__":
    main()
