"""Settings for a Spark that does little and ends soon: what it compiles would cost more than what it runs."""

from __future__ import annotations

QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
# The same for the command line.
QUICK_OPTIONS = [option for name, value in QUICK.items() for option in ("--spark-conf", f"{name}={value}")]
