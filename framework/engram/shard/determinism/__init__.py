"""What a handler may not touch, and how it is noticed. See docs/decisions/0021-the-determinism-guard.md."""
