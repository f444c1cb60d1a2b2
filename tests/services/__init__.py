"""The servers that the tests use: found or fetched, started and stopped by the tests."""

from tests.services.common import ServiceError
from tests.services.pgbouncer import PgBouncer
from tests.services.postgres import Databases, Migrated, Postgres
from tests.services.redis import Redis
from tests.services.s3 import S3

__all__ = ["S3", "Databases", "Migrated", "PgBouncer", "Postgres", "Redis", "ServiceError"]
