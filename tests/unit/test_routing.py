"""The route table: fixed segments before parameters, by method, as the paths were sent."""

from starlette.types import Receive, Scope, Send

from shiftwork.server.routes import ENDPOINTS
from shiftwork.server.routing import RouteTable


class Answer:
    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


def found(table: RouteTable, method: str, path: str) -> tuple[str, dict[str, str]] | None:
    answer = table.find(method, path)
    return None if answer is None else (getattr(answer[0], "name", ""), answer[1])


TABLE = RouteTable(
    (method, path, Answer(f"{method} {path}"))
    for method, path in [
        ("GET", "/api/tasks"),
        ("POST", "/api/tasks"),
        ("GET", "/api/tasks/{task_id}"),
        ("POST", "/api/tasks/claim"),
        ("POST", "/api/tasks/{task_id}/complete"),
        ("GET", "/api/{kind}/claim"),
    ]
)


def test_path_is_found_by_its_segments_and_method() -> None:
    assert found(TABLE, "GET", "/api/tasks") == ("GET /api/tasks", {})
    assert found(TABLE, "POST", "/api/tasks/a%2Fb/complete") == (
        "POST /api/tasks/{task_id}/complete",
        {"task_id": "a%2Fb"},
    )


def test_fixed_segment_goes_before_a_parameter_where_the_method_fits() -> None:
    assert found(TABLE, "POST", "/api/tasks/claim") == ("POST /api/tasks/claim", {})
    assert found(TABLE, "GET", "/api/tasks/claim") == ("GET /api/tasks/{task_id}", {"task_id": "claim"})
    assert found(TABLE, "GET", "/api/agents/claim") == ("GET /api/{kind}/claim", {"kind": "agents"})


def test_other_paths_are_not_found() -> None:
    for method, path in [
        ("DELETE", "/api/tasks"),
        ("GET", "/api/tasks/"),
        ("GET", "/api//claim"),
        ("GET", "/api"),
        ("GET", ""),
        ("POST", "/api/tasks/a/b/complete"),
    ]:
        assert found(TABLE, method, path) is None, (method, path)


def test_every_operation_is_found_by_its_own_path() -> None:
    table = RouteTable((endpoint.method, endpoint.path, Answer(endpoint.path)) for endpoint in ENDPOINTS)
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace("{", "").replace("}", "")
        assert found(table, endpoint.method, path) == (endpoint.path, {name: name for name in names(endpoint.path)}), (
            endpoint.path
        )


def names(path: str) -> list[str]:
    return [segment.strip("{}") for segment in path.split("/") if segment.startswith("{")]
