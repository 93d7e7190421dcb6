"""The feature-extraction pipeline for models that return `mems`."""

from transformers import FeatureExtractionPipeline


class MemoryFeatureExtractionPipeline(FeatureExtractionPipeline):
    """`pipeline("feature-extraction", model=..., pipeline_class=MemoryFeatureExtractionPipeline)`, for any `batch_size`.

    That of transformers cuts every output into rows of the batch, and fails at `mems`, a tuple with an element per layer.
    """

    def _forward(self, model_inputs: dict) -> dict:
        features = super()._forward(model_inputs)
        return type(features)(last_hidden_state=features.last_hidden_state)


__all__ = ["MemoryFeatureExtractionPipeline"]
