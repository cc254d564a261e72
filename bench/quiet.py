"""Tables and progress are what a person wants to see of a benchmark; of the log lines of what it runs, the errors."""

from __future__ import annotations

import logging
import sys

import structlog


def errors_only() -> None:
    """For this process, from here on."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
