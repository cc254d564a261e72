"""Impressions and clicks per tweet and hour: counted as they come, read while the hour lasts, told when it is over."""

from sample_apps.impressions.app import app

__all__ = ["app"]
