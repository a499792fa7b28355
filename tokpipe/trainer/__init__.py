"""Tensors to a model: a reference trainer in which every layout computes the same."""

from tokpipe.trainer.config import TrainConfig
from tokpipe.trainer.export import ExportSummary, export_checkpoint
from tokpipe.trainer.loop import TrainSummary, describe
from tokpipe.trainer.mesh import ParallelConfig, build_mesh, describe_mesh
from tokpipe.trainer.metrics import read_metrics
from tokpipe.trainer.model import ModelConfig, Transformer
from tokpipe.trainer.optimizer import OptimizerConfig
from tokpipe.trainer.parallel_model import ParallelModel
from tokpipe.trainer.parallelize import parallelize
from tokpipe.trainer.plot import plot_losses
from tokpipe.trainer.source import StepSource
from tokpipe.trainer.step import EvalResult, StepBatch, StepResult
from tokpipe.trainer.train import read_train_config, run_training
from tokpipe.trainer.world import Launch

__all__ = [
    "EvalResult",
    "ExportSummary",
    "Launch",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "ParallelModel",
    "StepBatch",
    "StepResult",
    "StepSource",
    "TrainConfig",
    "TrainSummary",
    "Transformer",
    "build_mesh",
    "describe",
    "describe_mesh",
    "export_checkpoint",
    "parallelize",
    "plot_losses",
    "read_metrics",
    "read_train_config",
    "run_training",
]
