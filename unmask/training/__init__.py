"""Masked-diffusion training."""
