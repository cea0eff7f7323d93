"""What errors of an object store mean, and that no credential gets into a text."""

import pytest

from orchestra.sync.errors import Changed, Missing, NoAccess, NoRoom, SyncError, Unreachable
from orchestra.sync.faults import fault_of
from orchestra.sync.remote import shown

_AT = "Error performing GET https://b.s3.amazonaws.com/x?X-Amz-Signature=topsecret in 1ms - "


@pytest.mark.parametrize(
    ("text", "kind", "passing", "slow"),
    [
        (
            _AT + "Server returned non-2xx status code: 503 Service Unavailable: <Error><Code>SlowDown</Code></Error>",
            Unreachable,
            True,
            True,
        ),
        (_AT + "Server returned non-2xx status code: 429 Too Many Requests: ", Unreachable, True, True),
        (_AT + "Server returned non-2xx status code: 500 Internal Server Error: ", Unreachable, True, False),
        (_AT + "Server returned non-2xx status code: 400 Bad Request: ", Unreachable, False, False),
        (
            _AT + "Server returned non-2xx status code: 403 Forbidden: <Error><Code>AccessDenied</Code></Error>",
            NoAccess,
            False,
            False,
        ),
        (_AT + "Server returned non-2xx status code: 401 Unauthorized", NoAccess, False, False),
        (_AT + "Server returned non-2xx status code: 404 Not Found: <Code>NoSuchBucket</Code>", Missing, False, False),
        (_AT + "Server returned non-2xx status code: 404 Not Found: <Code>NoSuchKey</Code>", Missing, False, False),
        (_AT + "Server returned non-2xx status code: 412 Precondition Failed", Changed, False, False),
        (_AT + "HTTP error: error sending request for url (https://u:topsecret@h/x)", Unreachable, True, False),
        (
            "Error performing PUT http://169.254.169.254/latest/api/token in 1s - HTTP error: request or response body error",
            NoAccess,
            False,
            False,
        ),
        ("Unable to write: No space left on device (os error 28)", NoRoom, False, False),
        ("Unable to open: Permission denied (os error 13)", NoAccess, False, False),
        ("something new with https://h/?sig=topsecret and my-secret-value", SyncError, False, False),
    ],
)
def test_an_error_is_understood_and_told_without_secrets(
    text: str, kind: type[SyncError], passing: bool, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "my-secret-value")
    fault = fault_of(RuntimeError(text + "\n\nDebug source:\nGeneric { topsecret }"))
    assert (fault.kind, fault.passing, fault.slow_down) == (kind, passing, slow)
    told = str(fault.told("read x", "s3://b/p"))
    assert told.startswith("cannot read x at s3://b/p: ")
    assert "secret" not in told.replace("AWS_SECRET", "")


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("az://account:key@container/p?sv=1&sig=abc", "az://container/p"),
        ("file:///a/b", "file:///a/b"),
    ],
)
def test_a_url_is_shown_without_what_opens_it(url: str, printed: str) -> None:
    assert shown(url) == printed
