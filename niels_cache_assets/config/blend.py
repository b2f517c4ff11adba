"""The settings of a blend: table [blend.NAME]. Nothing is opened here."""

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, field_validator

MEGATRON_SEED = 1234  # the default of Megatron-LM's --seed
MEGATRON_SURPLUS = 0.005  # of its --mid-level-dataset-surplus
ALL_TRAIN = "1"
_SHARE = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*")


class BlendSettings(BaseModel):
    """[blend.NAME]: samples of pretrain data sets in the proportions of weights, in Megatron-LM's order; its indices are built ahead."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    weights: dict[str, PositiveFloat] = Field(min_length=1, description="Weight of each member, a name of a pretrain table; any scale")
    sequence_length: int = Field(ge=1, description="Tokens of a sample: Megatron-LM's --seq-length")
    num_samples: int = Field(ge=1, le=2**60, description="Samples of the run: --train-iters times --global-batch-size, or --train-samples")
    seed: int = Field(MEGATRON_SEED, ge=0, lt=2**32, description="Megatron-LM's --seed")
    split: str = Field(ALL_TRAIN, description='Shares of each member that are train, valid and test: --split, such as "99,1,0"')
    part: Literal["train", "valid", "test"] = Field("train", description="Which of the three is blended")

    @field_validator("weights")
    @classmethod
    def _finite(cls, value: dict[str, float]) -> dict[str, float]:
        if not sum(value.values()) < float("inf"):
            raise ValueError("add up to infinity")
        return value

    @field_validator("split")
    @classmethod
    def _a_split(cls, value: str) -> str:
        """As `split_ranges` of the runtime takes it, which would load torch."""
        parts = value.split(",")
        if len(parts) > 3 or not all(_SHARE.fullmatch(part) for part in parts) or not any(map(float, parts)):
            raise ValueError('give the weights of train, valid and test, such as "99,1,0"')
        return value
