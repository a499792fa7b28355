from __future__ import annotations

import pytest

from tokpipe.urls import refuse_credentials

FINE = [
    "data/tokens",
    "/data/user:name@host/x",
    "hf:org/name:config:train",
    "s3://bucket/data",
    "s3://bucket/a:b/c@d",
    "s3://arn:aws:s3:us-east-1:1234:accesspoint/mine/data",
    "abfs://container@account.dfs.core.windows.net/data",
    "hdfs://user@host:8020/data",
    "http://127.0.0.1:8000/corpus/file.jsonl?download=true",
    "memory://x/y",
]
REFUSED = [
    "s3://AKIAEXAMPLE:hidden@bucket/data",
    "s3://AKIAEXAMPLE:hid/den@bucket/data",
    "ftp://me:hidden@host:21/data",
    "simplecache::s3://AKIAEXAMPLE:hidden@bucket/data",
    "https://host/file.jsonl?token=hidden",
    "https://host/file.jsonl?page=2&X-Amz-Signature=hidden",
    "https://account.blob.core.windows.net/c/f.parquet?sv=2024&sig=hidden",
    "https://host/f?AWSAccessKeyId=hidden",
]


@pytest.mark.parametrize("url", FINE)
def test_urls_without_credentials_pass(url):
    refuse_credentials(url)


@pytest.mark.parametrize("url", REFUSED)
def test_credentials_are_refused_and_not_repeated(url):
    with pytest.raises(ValueError, match="the URL holds a") as caught:
        refuse_credentials(url)
    assert not {"hidden", "hid/den", "AKIAEXAMPLE"} & set(str(caught.value).split("://")) and "hidden" not in str(caught.value)
    assert "den@" not in str(caught.value)
