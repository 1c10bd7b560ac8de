"""Architectures of real packages, tiny and untrained, each labelled by hand.

A label lists the parameters with two or more dimensions that are not matrices: ``output`` layers,
``embedding`` weights, ``table`` of positions or tokens, and ``vector`` for gains and the like. All
others with two or more dimensions are matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import peft
import transformers as hf
from torch import nn

Labels = Mapping[str, tuple[str, ...]]  # kind → patterns of names


@dataclass(frozen=True)
class Architecture:
    """A model and what its parameters are.

    Attributes:
        make: Builds it, without the network.
        labels: Patterns of names by kind.
        misses: What is routed otherwise than labelled, by name, and why that is left so.
    """

    make: Callable[[], nn.Module]
    labels: Labels
    misses: Mapping[str, str] = field(default_factory=dict)


SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 40,
}
GROUPED = {**SMALL, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 32}


def gpt2() -> nn.Module:
    config = hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=32)
    return hf.GPT2LMHeadModel(config)


def llama(kind: Any = hf.LlamaForCausalLM, **options: Any) -> nn.Module:
    return kind(hf.LlamaConfig(**GROUPED, **{"pad_token_id": 0, **options}))


def bert(kind: Any) -> nn.Module:
    return kind(hf.BertConfig(**SMALL))


def detr() -> nn.Module:
    backbone = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], out_features=["stage2"]
    )
    return hf.DetrForObjectDetection(
        hf.DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            num_queries=5,
        )
    )


def clip() -> nn.Module:
    text = {**SMALL, "projection_dim": 16}
    vision = {**SMALL, "image_size": 32, "patch_size": 16}
    return hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12))


def wav2vec2() -> nn.Module:
    return hf.Wav2Vec2ForCTC(
        hf.Wav2Vec2Config(
            **SMALL,
            conv_dim=(8, 8),
            conv_stride=(2, 2),
            conv_kernel=(3, 3),
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
        )
    )


def whisper() -> nn.Module:
    return hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(
            vocab_size=40,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            num_mel_bins=8,
            max_source_positions=16,
            max_target_positions=16,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
    )


def bart() -> nn.Module:
    return hf.BartForConditionalGeneration(
        hf.BartConfig(
            vocab_size=40,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            max_position_embeddings=16,
        )
    )


def t5() -> nn.Module:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
    )


def swin() -> nn.Module:
    return hf.SwinForImageClassification(
        hf.SwinConfig(
            image_size=32,
            patch_size=4,
            embed_dim=8,
            depths=[1, 1],
            num_heads=[2, 2],
            window_size=4,
            use_absolute_embeddings=True,
        )
    )


def segformer() -> nn.Module:
    return hf.SegformerForSemanticSegmentation(
        hf.SegformerConfig(
            depths=[1, 1, 1, 1],
            hidden_sizes=[8, 8, 8, 8],
            num_attention_heads=[1, 1, 1, 1],
            decoder_hidden_size=8,
        )
    )


def mamba() -> nn.Module:
    return hf.MambaForCausalLM(
        hf.MambaConfig(vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=2)
    )


def perceiver() -> nn.Module:
    return hf.PerceiverForMaskedLM(
        hf.PerceiverConfig(
            vocab_size=40,
            d_model=16,
            d_latents=16,
            num_latents=6,
            num_blocks=1,
            num_self_attends_per_block=1,
            num_self_attention_heads=2,
            num_cross_attention_heads=2,
            max_position_embeddings=16,
            qk_channels=16,
            v_channels=16,
        )
    )


def lora(base: nn.Module, **options: Any) -> nn.Module:
    return peft.get_peft_model(base, peft.LoraConfig(r=2, **options))


class HeadFirst(nn.Module):
    """torch's encoder, with the output layer registered before everything else."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 40)
        self.positions = nn.Embedding(32, 16)
        self.tokens = nn.Embedding(40, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 24)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Recurrent(nn.Module):
    """A language model of torch's LSTM, with tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Linear(16, 40)
        self.embedding = nn.Embedding(40, 16)
        self.lstm = nn.LSTM(16, 16, 2)
        self.decoder.weight = self.embedding.weight


def weight_normed() -> nn.Module:
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(8, 16)), nn.ReLU(), norm(nn.Linear(16, 3)))


class TwoTasks(nn.Module):
    """A body with a head for each task, and an average layer norm over images."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict(
            {
                "depth": nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)),
                "kind": nn.Linear(8, 5),
            }
        )
        self.stem = nn.Conv2d(3, 8, 3)
        self.norm = nn.LayerNorm((8, 6, 6))
        self.up = nn.ConvTranspose2d(8, 8, 2)


VISION = {name: value for name, value in SMALL.items() if name != "vocab_size"}
IMAGE = {**VISION, "image_size": 32, "patch_size": 16}
THREE = ("*embeddings.word_*", "*embeddings.position_*", "*embeddings.token_type_*")
LATER = "the loss that follows decides; output=() or output=... says it"

ARCHITECTURES: dict[str, Architecture] = {
    "BERT": Architecture(
        lambda: bert(hf.BertModel),
        {"embedding": THREE},
        {"pooler.dense.weight": f"a body without a head, whose last layer is taken; {LATER}"},
    ),
    "BERT, masked words": Architecture(lambda: bert(hf.BertForMaskedLM), {"embedding": THREE}),
    "BERT, two pretraining heads": Architecture(
        lambda: bert(hf.BertForPreTraining),
        {"embedding": THREE, "output layer": ("cls.seq_relationship.weight",)},
    ),
    "BERT, classes": Architecture(
        lambda: bert(hf.BertForSequenceClassification),
        {"embedding": THREE, "output layer": ("classifier.weight",)},
    ),
    "BERT, answers": Architecture(
        lambda: bert(hf.BertForQuestionAnswering),
        {"embedding": THREE, "output layer": ("qa_outputs.weight",)},
    ),
    "RoBERTa, classes": Architecture(
        lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**SMALL)),
        {"embedding": THREE, "output layer": ("classifier.out_proj.weight",)},
    ),
    "RoBERTa, tokens": Architecture(
        lambda: hf.RobertaForTokenClassification(hf.RobertaConfig(**SMALL)),
        {"embedding": THREE, "output layer": ("classifier.weight",)},
    ),
    "DistilBERT, classes": Architecture(
        lambda: hf.DistilBertForSequenceClassification(
            hf.DistilBertConfig(vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=24)
        ),
        {"embedding": THREE[:2], "output layer": ("classifier.weight",)},
    ),
    "ELECTRA, replaced words": Architecture(
        lambda: hf.ElectraForPreTraining(hf.ElectraConfig(**SMALL, embedding_size=8)),
        {
            "embedding": THREE,
            "output layer": ("discriminator_predictions.dense_prediction.weight",),
        },
    ),
    "ELECTRA, masked words": Architecture(
        lambda: hf.ElectraForMaskedLM(hf.ElectraConfig(**SMALL, embedding_size=8)),
        {"embedding": THREE},
    ),
    "DeBERTa v2, masked words": Architecture(
        lambda: hf.DebertaV2ForMaskedLM(
            hf.DebertaV2Config(**SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"])
        ),
        {"embedding": (*THREE[:2], "*.rel_embeddings.weight")},
    ),
    "GPT-2": Architecture(gpt2, {"embedding": ("*.wte.weight", "*.wpe.weight")}),
    "GPT-2, two heads": Architecture(
        lambda: hf.GPT2DoubleHeadsModel(
            hf.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40, n_positions=32)
        ),
        {
            "embedding": ("*.wte.weight", "*.wpe.weight"),
            "output layer": ("multiple_choice_head.summary.weight",),
        },
    ),
    "Llama": Architecture(
        llama, {"embedding": ("*.embed_tokens.weight",), "output layer": ("lm_head.weight",)}
    ),
    "Llama, classes": Architecture(
        lambda: llama(hf.LlamaForSequenceClassification),
        {"embedding": ("*.embed_tokens.weight",), "output layer": ("score.weight",)},
    ),
    "Mixtral, experts": Architecture(
        lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**GROUPED, num_local_experts=4)),
        {"embedding": ("*.embed_tokens.weight",), "output layer": ("lm_head.weight",)},
    ),
    "T5": Architecture(t5, {"embedding": ("shared.weight", "*.relative_attention_bias.weight")}),
    "BART": Architecture(bart, {"embedding": ("model.shared.weight", "*.embed_positions.weight")}),
    "Whisper": Architecture(
        whisper, {"embedding": ("*.embed_tokens.weight", "model.decoder.embed_positions.weight")}
    ),
    "wav2vec 2.0, letters": Architecture(
        wav2vec2, {"vector": ("*.weight.original0",), "output layer": ("lm_head.weight",)}
    ),
    "ViT, classes": Architecture(
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**IMAGE)),
        {
            "vector": ("*.cls_token", "*.position_embeddings"),
            "output layer": ("classifier.weight",),
        },
    ),
    "ViT, masked images": Architecture(
        lambda: hf.ViTMAEForPreTraining(
            hf.ViTMAEConfig(
                **IMAGE,
                decoder_hidden_size=16,
                decoder_num_hidden_layers=1,
                decoder_num_attention_heads=2,
                decoder_intermediate_size=24,
            )
        ),
        {
            "vector": ("*.cls_token", "decoder.mask_token"),
            "output layer": ("decoder.decoder_pred.weight",),
        },
    ),
    "BEiT, classes": Architecture(
        lambda: hf.BeitForImageClassification(
            hf.BeitConfig(**VISION, image_size=32, patch_size=16, use_relative_position_bias=True)
        ),
        {
            "vector": ("*.cls_token",),
            "table": ("*.relative_position_bias_table",),
            "output layer": ("classifier.weight",),
        },
    ),
    "Swin, classes": Architecture(
        swin,
        {
            "vector": ("*.position_embeddings",),
            "table": ("*.relative_position_bias_table",),
            "output layer": ("classifier.weight",),
        },
    ),
    "ConvNeXt, classes": Architecture(
        lambda: hf.ConvNextForImageClassification(
            hf.ConvNextConfig(hidden_sizes=[8] * 4, depths=[1] * 4)
        ),
        {"output layer": ("classifier.weight",)},
    ),
    "ResNet, classes": Architecture(
        lambda: hf.ResNetForImageClassification(
            hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1])
        ),
        {"output layer": ("classifier.1.weight",)},
    ),
    "SegFormer": Architecture(segformer, {"output layer": ("decode_head.classifier.weight",)}),
    "DETR": Architecture(
        detr,
        {
            "embedding": ("model.query_position_embeddings.weight",),
            "output layer": ("class_labels_classifier.weight", "bbox_predictor.layers.2.weight"),
        },
    ),
    "CLIP": Architecture(
        clip,
        {
            "embedding": ("*.token_embedding.weight", "*.position_embedding.weight"),
            "output layer": ("visual_projection.weight", "text_projection.weight"),
        },
    ),
    "Mamba": Architecture(mamba, {"embedding": ("*.embeddings.weight",), "vector": ("*.A_log",)}),
    "Perceiver, masked words": Architecture(
        perceiver,
        {
            "embedding": ("*input_preprocessor.*embeddings.weight",),
            "table": ("*.latents", "*.output_position_encodings.position_embeddings"),
        },
        {
            "perceiver.decoder.decoding_cross_attention.mlp.dense2.weight": (
                "the output is a function of the embedding, which no layer shows, so the last "
                f"layer is taken; {LATER}"
            )
        },
    ),
    "LoRA on GPT-2": Architecture(
        lambda: lora(gpt2(), target_modules=["c_attn"], fan_in_fan_out=True), {}
    ),
    "LoRA on Llama, with its ends": Architecture(
        lambda: lora(llama(), target_modules=["q_proj", "v_proj", "embed_tokens", "lm_head"]),
        {
            "embedding": ("*.lora_embedding_A.default",),
            "output layer": ("*.lm_head.lora_B.default.weight",),
        },
    ),
    "LoRA on BERT, with a new head": Architecture(
        lambda: lora(
            bert(hf.BertForSequenceClassification),
            target_modules=["query", "value"],
            task_type="SEQ_CLS",
        ),
        {"output layer": ("*.classifier.modules_to_save.default.weight",)},
    ),
    "torch's encoder, head first": Architecture(
        HeadFirst,
        {"embedding": ("tokens.weight", "positions.weight"), "output layer": ("head.weight",)},
    ),
    "torch's LSTM, tied": Architecture(Recurrent, {"embedding": ("decoder.weight",)}),
    "weight_norm": Architecture(
        weight_normed,
        {
            "vector": ("*.original0",),
            "output layer": ("2.parametrizations.weight.original1",),
        },
    ),
    "two tasks, heads first": Architecture(
        TwoTasks,
        {
            "vector": ("norm.*",),
            "output layer": ("heads.depth.2.weight", "heads.kind.weight"),
        },
    ),
}
