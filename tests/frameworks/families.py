# SPDX-License-Identifier: MIT
"""Tiny models of transformers' families, made on the spot: nothing is downloaded."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

WIDTH = 32
TEXT = {
    "vocab_size": 60,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
DECODER = {**TEXT, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 32,
    "patch_size": 8,
}
SPEECH = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
}
SEQ2SEQ = {
    "vocab_size": 60,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
TOWERS = {
    "text_config": {**TEXT, "eos_token_id": 2, "projection_dim": WIDTH},
    "vision_config": {**IMAGE, "projection_dim": WIDTH},
    "projection_dim": WIDTH,
}


def words(rows: int, random: torch.Generator) -> dict[str, Tensor]:
    """Token ids, of which the last is the end token, and a mask with padding."""
    ids = torch.randint(3, 60, (rows, 9), generator=random)
    ids[:, -1] = 2
    mask = torch.ones(rows, 9, dtype=torch.long)
    mask[1::2, 7:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def seq2seq(rows: int, random: torch.Generator) -> dict[str, Tensor]:
    """What an encoder reads and what a decoder reads."""
    return {**words(rows, random), "decoder_input_ids": torch.randint(3, 60, (rows, 5), generator=random)}


def images(rows: int, random: torch.Generator) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(rows, 3, 32, 32, generator=random)}


def both(rows: int, random: torch.Generator) -> dict[str, Tensor]:
    return {**words(rows, random), **images(rows, random)}


def sounds(rows: int, random: torch.Generator) -> dict[str, Tensor]:
    return {"input_values": torch.randn(rows, 400, generator=random)}


def spectra(rows: int, random: torch.Generator) -> dict[str, Tensor]:
    return {
        "input_features": torch.randn(rows, 16, 40, generator=random),
        "decoder_input_ids": torch.randint(3, 60, (rows, 5), generator=random),
    }


SMALL = {"hidden_sizes": [16, 32], "depths": [1, 1]}  # of convolutional networks

# family: model, configuration, inputs
FAMILIES: dict[str, tuple[str, dict[str, Any], Callable[[int, torch.Generator], dict[str, Tensor]]]] = {
    "Bert": ("BertModel", TEXT, words),
    "Roberta": ("RobertaModel", {**TEXT, "max_position_embeddings": 64}, words),
    "XLMRoberta": ("XLMRobertaModel", {**TEXT, "max_position_embeddings": 64}, words),
    "DistilBert": (
        "DistilBertModel",
        {"vocab_size": 60, "dim": WIDTH, "n_layers": 2, "n_heads": 4, "hidden_dim": 40},
        words,
    ),
    "Electra": ("ElectraModel", {**TEXT, "embedding_size": WIDTH}, words),
    "Albert": ("AlbertModel", {**TEXT, "embedding_size": WIDTH}, words),
    "MPNet": ("MPNetModel", {**TEXT, "max_position_embeddings": 64}, words),
    "Deberta": ("DebertaV2Model", {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, words),
    "ModernBert": (
        "ModernBertModel",
        {**TEXT, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
        words,
    ),
    "GPT2": ("GPT2Model", {"vocab_size": 60, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 32}, words),
    "GPTNeoX": ("GPTNeoXModel", TEXT, words),
    "OPT": (
        "OPTModel",
        {**TEXT, "ffn_dim": 40, "word_embed_proj_dim": WIDTH, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        words,
    ),
    "Bloom": ("BloomModel", {"vocab_size": 60, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4}, words),
    "Llama": ("LlamaModel", DECODER, words),
    "Mistral": ("MistralModel", DECODER, words),
    "Mixtral": ("MixtralModel", {**DECODER, "num_local_experts": 4, "experts_implementation": "eager"}, words),
    "Qwen2": ("Qwen2Model", DECODER, words),
    "Qwen3": ("Qwen3Model", {**DECODER, "head_dim": 8}, words),
    "Gemma": ("GemmaModel", {**DECODER, "head_dim": 8}, words),
    "Phi3": ("Phi3Model", DECODER, words),
    "Mamba": ("MambaModel", {"vocab_size": 60, "hidden_size": WIDTH, "num_hidden_layers": 2, "state_size": 4}, words),
    "T5": (
        "T5Model",
        {"vocab_size": 60, "d_model": WIDTH, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4, "pad_token_id": 0},
        seq2seq,
    ),
    "Bart": ("BartModel", SEQ2SEQ, seq2seq),
    "ViT": ("ViTModel", IMAGE, images),
    "DeiT": ("DeiTModel", IMAGE, images),
    "Dinov2": ("Dinov2Model", IMAGE, images),
    "Beit": ("BeitModel", IMAGE, images),
    "Swin": (
        "SwinModel",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
        images,
    ),
    "ResNet": ("ResNetModel", {**SMALL, "embedding_size": 16, "layer_type": "basic"}, images),
    "ConvNext": ("ConvNextModel", {**SMALL, "num_stages": 2, "patch_size": 4}, images),
    "MobileViT": (
        "MobileViTModel",
        {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [16, 16, 24, 32, 40, 48, 64], "image_size": 64,
         "num_attention_heads": 4, "initializer_range": 0.5},  # else its outputs vanish
        images,
    ),
    "CLIP": ("CLIPModel", TOWERS, both),
    "Siglip": ("SiglipModel", TOWERS, both),
    "Whisper": (
        "WhisperModel",
        {**SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 32},
        spectra,
    ),
    "Wav2Vec2": ("Wav2Vec2Model", SPEECH, sounds),
    "Hubert": ("HubertModel", SPEECH, sounds),
    "Wav2Vec2Conformer": ("Wav2Vec2ConformerModel", SPEECH, sounds),
}  # fmt: skip


def model_of(family: str) -> nn.Module:
    """The same weights on every rank; nothing is dropped, so that every run is comparable."""
    name, options, _ = FAMILIES[family]
    kind = getattr(transformers, name)
    config = kind.config_class(**options)
    for setting, value in vars(config).items():
        if "drop" in setting and isinstance(value, float):
            setattr(config, setting, 0.0)
    torch.manual_seed(5)
    return kind(config)


def inputs_of(family: str, rows: int, seed: int = 0) -> dict[str, Tensor]:
    return FAMILIES[family][2](rows, torch.Generator().manual_seed(seed))
