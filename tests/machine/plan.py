"""Random batches to submit, with the forms of their dependencies and the expected outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from shiftwork.model import ids
from shiftwork.model.errors import CircularDependency, IdInUse, ShiftworkError, UnknownDependency
from shiftwork.model.task import Submitted
from tests.machine.model import Agent, Lineage, Model

OWN_UUID = "0193d5a0-0000-7000-8000-000000000001"
NAMES = ("build", "ship", OWN_UUID)
AGENTS = (
    Agent("ada", frozenset({"gpu"}), None, 3, None, "laptop"),
    Agent("bob", frozenset(), None, 1, 2.0, "laptop"),
    Agent("cid", frozenset({"gpu"}), frozenset({"docs"}), 2, 1.0, "cid"),
)


class Ref(NamedTuple):
    """A dependency as a submitter writes it: an existing task by a form of its id, or a name."""

    kind: str
    number: int
    form: str


class Spec(NamedTuple):
    """A task to be submitted."""

    type: str
    capability: str | None
    target: str | None
    cost: float
    key: str | None
    name: str | None
    after: tuple[Ref, ...]


refs = st.builds(
    Ref,
    st.sampled_from(["known", "known", "known", "sibling", "sibling", "name"]),
    st.integers(0, 50),
    st.sampled_from(["shown", "uuid", "name"]),
)
specs = st.builds(
    Spec,
    st.sampled_from(["code", "docs"]),
    st.sampled_from([None, None, "gpu"]),
    st.sampled_from([None, None, None, "ada"]),
    st.sampled_from([0.0, 0.0, 0.4, 1.5]),
    st.sampled_from([None, None, None, None, "monday", "tuesday"]),
    st.sampled_from([None, None, None, None, None, *NAMES]),
    st.one_of(st.just(()), st.lists(refs, max_size=3).map(tuple)),
)


def resolve(model: Model, ref: Ref, siblings: Sequence[tuple[str, str]] = ()) -> tuple[str, str]:
    """Return the text of a reference and the label it means; a sibling has its local key."""
    known = [*model.all, *model.archived, *sorted(model.gone)]
    if ref.kind == "sibling" and siblings:
        return siblings[ref.number % len(siblings)]
    if ref.kind == "name" or not known:
        return resolve_name(model, NAMES[ref.number % len(NAMES)])
    label = known[ref.number % len(known)]
    names = [name for name, known_as in model.names.items() if known_as == label]
    if ref.form == "name" and names:
        return names[0], label
    return (uuid_of(label) if ref.form == "uuid" else label), label


def resolve_name(model: Model, name: str) -> tuple[str, str]:
    if name == OWN_UUID:
        return name, model.names.get(name) or ids.show_task(name)
    return name, model.names.get(name) or f"?{name}"


class Plan:
    """A batch as submitted, and the expected outcome."""

    def __init__(self, model: Model, batch: Sequence[Spec], root_of: Callable[[str], str]) -> None:
        self.model = model
        self.root_of = root_of
        self.batch = batch
        self.twin: dict[int, int] = {}
        self.known: dict[int, str] = {}
        self._fold_duplicates()
        self.labels = [self._label(place) for place in range(len(batch))]
        self.after: list[list[str]] = []
        self.written: list[dict[str, Any]] = []
        for place, spec in enumerate(batch):
            self._write(place, spec)

    def _fold_duplicates(self) -> None:
        first: dict[str, int] = {}
        for place, spec in enumerate(self.batch):
            if spec.key is None:
                continue
            if spec.key in self.model.keys:
                self.known[place] = self.model.keys[spec.key]
            elif first.setdefault(spec.key, place) != place:
                self.twin[place] = first[spec.key]

    def _label(self, place: int) -> str:
        """Return a label for a new task before it has an id."""
        name = self.batch[place].name
        if place in self.known:
            return self.known[place]
        if place in self.twin:
            return self._label(self.twin[place])
        if name is None:
            return f"new {place}"
        return ids.show_task(name) if name == OWN_UUID else f"?{name}"

    @property
    def fresh(self) -> list[int]:
        return [p for p in range(len(self.batch)) if p not in self.known and p not in self.twin]

    def _write(self, place: int, spec: Spec) -> None:
        siblings = [(f"local {p}", self.labels[p]) for p in range(len(self.batch)) if p != place]
        own = {self.batch[p].name: self.labels[p] for p in range(len(self.batch)) if self.batch[p].name}
        found = []
        for ref in spec.after:
            text, label = resolve(self.model, ref, siblings)
            found.append((text, own.get(text, label)))
        self.after.append(list(dict.fromkeys(label for _, label in found)))
        written: dict[str, Any] = {"type": spec.type, "dependencies": [text for text, _ in found]}
        if len(self.batch) > 1:
            written["key"] = f"local {place}"
        if spec.capability:
            written["spec"] = {"constraints": {"required_capabilities": [spec.capability]}}
        optional = {
            "target_agent_id": spec.target,
            "estimated_cost_usd": spec.cost or None,
            "idempotency_key": spec.key,
            "id": spec.name,
        }
        self.written.append({**written, **{k: v for k, v in optional.items() if v is not None}})

    @property
    def aliases(self) -> dict[str, str]:
        """Return ids of duplicates that no task has: they name the existing task from now on."""
        named = {self.batch[p].name: self.labels[p] for p in (*self.known, *self.twin)}
        return {
            n: label for n, label in named.items() if n and n not in self.model.names and n not in self._fresh_names()
        }

    def _fresh_names(self) -> set[str | None]:
        return {self.batch[p].name for p in self.fresh}

    def _names_are_used(self) -> bool:
        names = [self.batch[p].name for p in self.fresh if self.batch[p].name]
        own = ids.show_task(OWN_UUID)
        if len(set(names)) < len(names) or any(name in self.model.names for name in names):
            return True
        return OWN_UUID in names and (own in self.model.gone or own in self.model.archived)

    def _names_another(self) -> bool:
        """Return whether a duplicate has the id of another task than the existing one."""
        own = ids.show_task(OWN_UUID)
        taken = dict(self.model.names)
        taken |= {name: self.labels[p] for p in self.fresh if (name := self.batch[p].name)}
        for place in (*self.known, *self.twin):
            name, label = self.batch[place].name, self.labels[place]
            if name is None:
                continue
            if taken.setdefault(name, label) != label:
                return True
            if name == OWN_UUID and label != own and (own in self.model.gone or own in self.model.archived):
                return True
        return False

    def refusal(self, spawner: str | None = None) -> type[ShiftworkError] | None:
        if self._names_are_used() or self._names_another():
            return IdInUse
        passed = {waiter: [label] for name, label in self.aliases.items() for waiter in self.model.waiters(name)}
        if any(self.model.leads_to(above, label) for label, above in passed.items()):
            return CircularDependency
        edges = {self.labels[p]: self.after[p] for p in self.fresh}
        for waiter, above in passed.items():
            edges[waiter] = [*edges.get(waiter, []), *above]
        if any(label in self.model.gone for above in edges.values() for label in above):
            return UnknownDependency
        if any(self.model.leads_to(above, label, edges) for label, above in edges.items()):
            return CircularDependency
        if spawner is not None and self.model.leads_to(self.labels, spawner, edges):
            return CircularDependency
        return None

    def done(self, answers: Sequence[Submitted], *, check_status: bool = True) -> None:
        made = {self.labels[p]: answers[p].id for p in self.fresh}
        aliases = self.aliases
        for place in self.fresh:
            spec = self.batch[place]
            task = Lineage(answers[place].id, spec.type, spec.capability, spec.target, spec.cost, spec.key, "pending")
            self.model.add(task, [], spec.name)
        for place in self.fresh:
            task = self.model.all[answers[place].id]
            above = [made.get(label, label) for label in self.after[place]]
            task.dependencies = {label: self.model.status_of(label) == "completed" for label in above}
            task.status = "pending" if task.open else "ready"
        for name, label in aliases.items():
            self.model.alias(name, made.get(label, label))
        self.model.meet_fate(answers[place].id for place in self.fresh)
        for place, answer in enumerate(answers):
            assert answer.duplicate == (place not in self.fresh)
            expected = self.known.get(place) or made[self.labels[place]]
            assert self.root_of(answer.id) == expected
            if check_status and place in self.fresh:
                assert answer.status == self.model.all[answer.id].status


def uuid_of(shown: str) -> str:
    uuid = ids.parse(shown)
    assert uuid is not None
    return uuid
