"""Parts of notifications without a queue: addresses, secrets, delays, texts."""

import base64
import secrets
import time

import pytest
from standardwebhooks import Webhook

from shiftwork.notifications import policy
from shiftwork.notifications.model import Notification
from shiftwork.notifications.policy import DeliveryOutcome, is_public, key_of, line, shown
from shiftwork.notifications.webhooks import signature_headers

DAY = 86_400.0


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
)
def test_public_address_is_recognised_as_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),  # noqa: S104  # looked at, not listened on
        *("255.255.255.255", "224.0.0.1", "240.0.0.1", "192.0.2.1", "198.18.0.1"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
        *("64:ff9b::7f00:1", "2002:7f00:1::1", "2001:db8::1", "localhost", "", "127.1"),
        *("192.0.0.192", "192.0.0.170", "192.88.99.1", "100.127.255.254", "198.51.100.7", "203.0.113.7"),
        *("fec0::1", "3fff::1", "5f00::1", "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:10::1"),
        *(
            "64:ff9b:1::808:808",
            "::808:808",
            "::ffff:0:808:808",
            "2002:a00:1::1",
            "64:ff9b::c000:c0",
            "1000::1",
            "4000::1",
        ),
    ],
)
def test_private_address_is_not_public(address: str) -> None:
    assert not is_public(address)


def test_signature_matches_the_standard_webhooks_library() -> None:
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    now, body = time.time(), '{"text": "ä"}'.encode()
    signed = signature_headers(key_of(secret), "msg_1", now, body)
    assert Webhook(secret).verify(body, signed) == {"text": "ä"}
    with pytest.raises(Exception, match="signature"):
        Webhook(secret).verify(body + b" ", signed)


TOKEN = "sw_0123456789ab_" + "x" * 43


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (f"used {TOKEN} here", "used [redacted] here"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer [redacted]"),
        ("key sk-ant-api03-abcdefghijklmnop", "key [redacted]"),
        ("ghp_" + "a" * 36, "[redacted]"),
        ("postgresql://me:hush@db/queue", "postgresql://[redacted]@db/queue"),
        ('{"password": "hushhush"}', '{"password": "[redacted]"}'),
        ("OPENAI_API_KEY=abcdefgh next", "OPENAI_API_KEY=[redacted] next"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END KEY-----", "[redacted]-----END KEY-----"),
        ("tokens: 12000 used", "tokens: 12000 used"),
        ("Task task_01J moved to dead letter queue", "Task task_01J moved to dead letter queue"),
        ("a" * 5000, "a" * 1999 + "…"),
    ],
)
def test_secrets_are_redacted_from_text(text: str, cleaned: str) -> None:
    assert policy.redact_text(text) == cleaned


def test_secrets_are_redacted_by_field_name() -> None:
    found = {"api_key": "a", "nested": [{"clientSecret": {"v": 1}}], "tokens_in": 5, "token": "t.1", "reason": "crash"}
    assert policy.redact(found) == {
        "api_key": "[redacted]",
        "nested": [{"clientSecret": "[redacted]"}],
        "tokens_in": 5,
        "token": "[redacted]",
        "reason": "crash",
    }


def test_delivery_delays_grow_and_end_within_a_day() -> None:
    now, attempts, waits = 0.0, 0, []
    while (then := policy.after(DeliveryOutcome("it answered 500"), attempts + 1, now, DAY, 0.5)).status == "pending":
        waits.append(then.next_at - now)
        now, attempts = then.next_at, attempts + 1
    assert waits == sorted(waits)
    assert (then.status, 12 * 3600 < now <= DAY) == ("dead", True)


def test_delivery_ends_after_its_maximum_of_attempts() -> None:
    failed = DeliveryOutcome("it answered 500")
    assert policy.after(failed, policy.MAX_ATTEMPTS, 0.0, DAY, 0.0).status == "dead"
    assert policy.after(failed._replace(gone=True), 1, 0.0, DAY, 0.0).status == "dead"
    assert policy.after(DeliveryOutcome(), policy.MAX_ATTEMPTS, 0.0, DAY, 0.0).status == "sent"


def test_sink_backoff_grows_with_its_failures() -> None:
    rests = [policy.rest(DeliveryOutcome("no"), failures) for failures in range(1, 30)]
    assert rests[: policy.FREE_FAILURES] == [0.0] * policy.FREE_FAILURES
    assert rests == sorted(rests)
    assert rests[-1] == policy.MAX_REST_SEC
    assert policy.rest(DeliveryOutcome("it answered 429", 50.0), 1) == 50.0


def test_alert_line_contains_no_line_breaks() -> None:
    alert = {"severity": "critical", "message": "one\r\ntwo\x1b[31m"}
    assert line(Notification("alert.raised", "", alert)) == "[critical] one two [31m"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("https://example.com", "https://example.com"),
        ("https://example.com:8443/", "https://example.com:8443"),
        ("https://me:hush@hooks.slack.com/services/T/B/hush", "https://hooks.slack.com/…"),
        ("https://example.com?key=hush", "https://example.com/…"),
    ],
)
def test_only_the_host_of_a_url_is_shown(address: str, told: str) -> None:
    assert shown(address) == told
