"""Small random readers for tests, and Hugging Face's own attention to compare them with."""

from dataclasses import replace

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from utaca.detection.detector import Detector
from utaca.memory import BlockMemory, Branch
from utaca.memory.passes import BlockStep
from utaca.readers.attention import ATTENTION
from utaca.readers.families import FAMILIES
from utaca.readers.load import Reader
from utaca.settings.schema import DetectorSettings, MemorySettings, ReaderSettings


def rope(kind: str, **parameters: float) -> dict[str, dict[str, object]]:
    """Rotary scaling of a model that was trained on 64 tokens."""
    return {"rope_parameters": {"rope_type": kind, "original_max_position_embeddings": 64, **parameters}}


SIZES = {
    "llama": (LlamaConfig, {}),
    "llama-wide": (LlamaConfig, {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}),
    "llama3-rope": (
        LlamaConfig,
        rope("llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0),
    ),
    "llama-yarn": (LlamaConfig, rope("yarn", rope_theta=1e4, factor=4.0)),
    "qwen2": (Qwen2Config, {}),
    "qwen2-wide": (Qwen2Config, {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2}),
    "qwen3": (Qwen3Config, {"head_dim": 16}),
    "mistral": (MistralConfig, {"sliding_window": None}),
}

SETTINGS = MemorySettings(n_init=4, n_local=24, block_size=8, prefill_chunk=16, prefill_budget=2)


class SmallTokenizer(PreTrainedTokenizerFast):
    """A character a token, 0 ends an answer; a prompt stands in brackets."""

    def __init__(self) -> None:
        # 97 tokens; an unknown character is a question mark.
        vocabulary = {"<end>": 0, "\n": 32, **{chr(c): c % 96 + 1 for c in range(32, 127)}}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
        super().__init__(tokenizer_object=tokenizer, eos_token="<end>", name_or_path="test")
        self.chat_template = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"


def make_reader(kind: str = "llama", memory: MemorySettings | None = None, seed: int = 0, **sizes: int) -> Reader:
    """A reader with random weights of float32."""
    config_class, extra = SIZES[kind]
    base = {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.3,
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config_class(**{**base, **extra, **sizes}), attn_implementation=ATTENTION)
    settings = ReaderSettings(name="test", path="test", memory=replace(memory or SETTINGS))
    return Reader(model.eval().requires_grad_(False), SmallTokenizer(), settings)


def full_attention(reader: Reader, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [T, V] of the same weights under Hugging Face's own attention."""
    reader.model.set_attn_implementation("sdpa")
    try:
        hidden = reader.model.base_model(tokens[None], use_cache=False).last_hidden_state[0]
        return hidden @ reader.model.get_output_embeddings().weight.T
    finally:
        reader.model.set_attn_implementation(ATTENTION)


def ran(branch: Branch, tokens: torch.Tensor, budget: int) -> BlockStep:
    """A step behind a branch, which has run and is not committed."""
    step = branch.plan(tokens, budget)
    branch.run([step])
    return step


def contents(document: BlockMemory) -> list[torch.Tensor]:
    """Everything a sealed memory holds, by layer."""
    return [*(store.tokens for store in document.stores), *document.representatives, *document.attention_mass]


def some_tokens(n: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(1, 97, (n,), generator=torch.Generator().manual_seed(seed))


def in_float64(reader: Reader, *, rotary: bool = True) -> None:
    """A reader in float64, its norms too, which transformers computes in float32, and with ``rotary`` the tables of
    :class:`Rotary`; positions that nobody reserves are then not there."""
    reader.model.double()
    for parent in list(reader.model.modules()):
        for name, norm in parent.named_children():
            if isinstance(norm, LlamaRMSNorm | Qwen2RMSNorm | Qwen3RMSNorm | MistralRMSNorm):
                exact = torch.nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=torch.float64)
                exact.load_state_dict(norm.state_dict())
                setattr(parent, name, exact)
    reader._parts = FAMILIES[reader.model.config.model_type].parts(reader.model)
    if rotary:
        frequencies = reader.rotary._embedding.inv_freq.double()

        def tables(length: int) -> tuple[torch.Tensor, torch.Tensor]:
            angles = torch.arange(length)[:, None] * frequencies
            return angles.cos().repeat(1, 2), torch.cat((-angles.sin(), angles.sin()), 1)

        reader.rotary._compute = tables
        reader.rotary._tables = tables(1)


def make_detector(reader: Reader) -> Detector:
    """A random detector of the paper's kind, whose verdicts differ from token to token."""
    torch.manual_seed(3)
    detector = Detector(DetectorSettings(), reader.width).eval()
    for weight in detector.parameters():
        # Far from zero, so that the verdicts are far from a tie.
        weight.data *= 3
    return detector
