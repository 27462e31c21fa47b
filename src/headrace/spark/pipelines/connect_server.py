"""A Spark Connect server in a session of ours: on a free port of the loopback address, for whoever has its token."""

import secrets

from pyspark.sql import SparkSession

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""The variable in which Spark's clients look for the token."""


def settings() -> dict[str, str]:
    """What a session must be started with."""
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.authenticate.token": secrets.token_urlsafe(24),
    }


def variables(spark: SparkSession) -> dict[str, str]:
    """The environment in which Spark's clients find the server."""
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    token = spark.sparkContext.getConf().get("spark.connect.authenticate.token", "")
    return {"SPARK_API_MODE": "connect", "SPARK_REMOTE": f"sc://localhost:{port}/", TOKEN: token or ""}
