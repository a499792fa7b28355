"""Credentials have no place in a URL: it is written to manifests, logs and messages. Refused wherever one is taken."""

from __future__ import annotations

import re

USER_AND_PASSWORD = re.compile(r"://(?!arn:)[^/@]*:[^/]*[^/0-9][^@]*@|://[^/@]*:[^/]*@")
SECRET_PARAMETER = re.compile(r"[?&]([^=&#]*(?:token|secret|key|sig|pass|cred|auth|sas)[^=&#]*)=", re.IGNORECASE)
NEXT = "Give them by the environment or the files that the protocol's library reads (for s3://: AWS_* or ~/.aws)."


def refuse_credentials(url: str) -> None:
    """Refuse `scheme://user:password@…` and parameters such as `?token=…`; the message shows the scheme alone.

    Raises:
        ValueError: if there are any.

    Example:
        `refuse_credentials("s3://bucket/data")` returns, `refuse_credentials("s3://key:secret@bucket/data")` raises.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return
    if USER_AND_PASSWORD.search(url):
        raise ValueError(f"{scheme}://...: the URL holds a user name and a password. {NEXT}")
    parameter = SECRET_PARAMETER.search(url)
    if parameter:
        raise ValueError(f"{scheme}://...: the URL holds a secret as its parameter {parameter[1]!r}. {NEXT}")
