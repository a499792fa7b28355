"""A real S3 server (moto) in a process of its own, for the tests of object stores."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def serve_s3(bucket: str) -> Iterator[dict[str, str]]:
    """Serve S3 on the loopback with one empty bucket; yields the environment that AWS libraries read."""
    port = free_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test-key-id",
        "AWS_SECRET_ACCESS_KEY": "test-secret-that-must-not-leak",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        make = f"import boto3; boto3.client('s3').create_bucket(Bucket={bucket!r})"
        subprocess.run([sys.executable, "-c", make], check=True, env={**os.environ, **environment})
        yield environment
    finally:
        process.terminate()
        process.wait(timeout=30)
