"""The compiled steps of Megatron's indices under their former name; they are in `niels_cache_runtime.megatron.kernels`."""

from niels_cache_runtime.megatron.kernels import advance_lanes, place_samples

__all__ = ["advance_lanes", "place_samples"]
