"""The command log on Kafka: see `log.py`. The only place that knows Kafka's client."""
