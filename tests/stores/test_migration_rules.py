"""Each migration can be applied to a large queue that is in use, and leaves programs of the version before working.

What breaks a rule needs a comment line in its file that begins with `-- locks:` and says why it is fine there.
"""

import re

import pytest

from shiftwork.store import migrate

PROMISED = 40
"""The first migration of the promise; those before it were never applied next to running programs."""

LONG = {
    "rewrites or reads the whole table": re.compile(
        r"^alter table .*(alter (column )?\w+ (set data )?type|set not null|set (un)?logged|set tablespace)"
    ),
    "checks every row under its lock: add the constraint `not valid`": re.compile(
        r"^alter table .*\badd (constraint \w+ )?(check|foreign key|unique|primary key|exclude)(?!.*not valid)",
        re.DOTALL,
    ),
    "writes or checks every row: use a constant default, no generated value, key or check": re.compile(
        r"^alter table .*\badd column [^,]*(default [^,]*\(|generated|references|unique|primary key|check)"
    ),
    "changes many rows in one transaction": re.compile(r"^(update|delete)\b|^insert\b.*\bselect\b"),
    "locks the table for as long as it takes": re.compile(r"^(lock|truncate|cluster|reindex|vacuum|refresh)\b"),
    "hides what it does": re.compile(r"^do\b|^select\b"),
}
BREAKING = {
    "takes away what the version before uses: make it a contract": re.compile(
        r"^drop (table|view|index)|^alter table .*\b(drop|rename)\b|^alter (view|index|sequence) .*\brename\b",
        re.DOTALL,
    ),
    "older programs do not fill this column: give it a default": re.compile(
        r"^alter table .*\badd column (?![^,]*default)[^,]*not null"
    ),
}
NEW_TABLE = re.compile(r"^create table (?:if not exists )?(\w+)")
TARGET = re.compile(r"^(?:alter table|update|delete from|insert into|drop table) (?:if exists )?(\w+)")


def found_in(migration: migrate.Migration) -> list[str]:
    """What a migration may not do to a table that has rows when it comes."""
    texts = [" ".join(text.split()) for text in migrate.statements_of(migration.text.lower())]
    new = {table[1] for text in texts if (table := NEW_TABLE.match(text))}
    old = [text for text in texts if not ((target := TARGET.match(text)) and target[1] in new)]
    rules = LONG if migration.is_contract else {**LONG, **BREAKING}
    return [f"{text[:60]}: {what}" for text in old for what, rule in rules.items() if rule.search(text)]


@pytest.mark.parametrize("migration", migrate.migrations("postgres"), ids=lambda each: each.title)
def test_migration_holds_no_lock_for_long_and_breaks_no_older_program(migration: migrate.Migration) -> None:
    if migration.number >= PROMISED and not re.search(r"^-- locks: \w+", migration.text, re.MULTILINE):
        assert found_in(migration) == []


@pytest.mark.parametrize(
    "text",
    [
        "alter table tasks alter column rank type numeric",
        "alter table tasks alter rank set not null",
        "alter table tasks add check (rank > 0)",
        "alter table tasks add constraint c foreign key (lane) references lanes",
        "alter table tasks add column x uuid default gen_random_uuid()",
        "alter table tasks add column x int generated always as (lane + 1) stored",
        "alter table tasks add column a int, add column b int not null",
        "update tasks set rank = 0",
        "insert into tombstones select id from tasks",
        "do $$ begin delete from tasks; end $$",
        "alter table tasks rename column rank to place",
        "alter table tasks drop column rank",
        "drop index idx_tasks_dag",
    ],
)
def test_rules_detect_forbidden_statements(text: str) -> None:
    assert found_in(migrate.Migration(9999, "made_up", text, ""))


@pytest.mark.parametrize(
    "text",
    [
        "alter table tasks add column x int not null default 0, add column y text",
        "alter table tasks add check (rank > 0) not valid",
        "create index idx_new on tasks (rank)",
        "create table new (id int primary key); create index i on new (id); insert into new select 1",
        "insert into search_marks (name, read_to) values ('x', 0)",
        "create or replace view v as select 1",
    ],
)
def test_rules_allow_short_statements(text: str) -> None:
    assert found_in(migrate.Migration(9999, "made_up", text, "")) == []


def test_contract_names_a_migration_that_exists() -> None:
    numbers = {migration.number for migration in migrate.sources()}
    for migration in migrate.sources():
        needed = migrate.needs(migration.name)
        assert needed is None or (needed in numbers and needed < migration.number)
