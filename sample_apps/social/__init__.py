"""A small social network: users who follow each other, publish, like, and read what those they follow wrote."""

from sample_apps.social.app import app

__all__ = ["app"]
