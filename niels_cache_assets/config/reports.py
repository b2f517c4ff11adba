"""The settings of reports: table [reports]. Nothing is opened here."""

from pydantic import BaseModel, ConfigDict, Field

MAX_EPOCHS = 4.0  # up to there repeated text is nearly as good as new: Muennighoff et al. 2023, arXiv:2305.16264


class ReportsSettings(BaseModel):
    """[reports]: the run that `reports/mixture` plans with all pretrain sets where there is no [blend.NAME], which says its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    steps: int | None = Field(None, ge=1, le=2**40, description="Steps of the run; None: as many as read everything once")
    batch_size: int = Field(32, ge=1, le=2**20, description="Samples of a step on all ranks together; of a blend too")
    sequence_length: int = Field(1024, ge=1, lt=2**31, description="Tokens of a sample")
    max_epochs: float = Field(
        MAX_EPOCHS, gt=0, le=2**20, strict=False, description="Warn of a data set that is read more often, of blends too"
    )
