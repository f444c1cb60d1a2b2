"""The servers that the tests talk to, found or fetched, started and stopped by the tests themselves."""

from tests.services.common import ServiceError
from tests.services.pgbouncer import PgBouncer
from tests.services.postgres import Databases, Postgres
from tests.services.redis import Redis

__all__ = ["Databases", "PgBouncer", "Postgres", "Redis", "ServiceError"]
